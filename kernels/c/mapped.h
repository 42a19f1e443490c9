/* Mapped files that other programs may cut short or overwrite. */
#ifndef FASTFLOW_MAPPED_H
#define FASTFLOW_MAPPED_H

#include "cpu.h"

/* Watch pages (bytes), a read-only map of a whole file. If the file is cut short, its lost pages read as zeros. Returns
   the number of the watch, -1 if there are too many. */
int ff_watch(const void *pages, size_t bytes, int file);
void ff_unwatch(int number);    /* call before unmapping */
int ff_was_changed(int number);  /* 1: the file was cut short or written to */

#endif
