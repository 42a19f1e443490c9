#ifndef FASTFLOW_MAPPED_H
#define FASTFLOW_MAPPED_H

#include "cpu.h"

/* Watch pages (bytes), a read-only map of a whole file. If the file is cut short, its lost pages read as zeros. Returns
   the watch's number; -1: too many are watched. */
int ff_watch(const void *pages, size_t bytes, int file);
void ff_unwatch(int number);    /* call before unmapping */
int ff_was_changed(int number);  /* 1: the file was cut short or written to */

#endif
