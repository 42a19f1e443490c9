/* Mapped files that others may change. */
#ifndef FASTFLOW_MAPPED_H
#define FASTFLOW_MAPPED_H

#include "cpu.h"

/* Watch pages (bytes), the read-only map of a whole file: lost pages read as zeros. Returns its number, -1 if too
   many. */
int ff_watch(const void *pages, size_t bytes, int file);
void ff_unwatch(int number);    /* before it is unmapped */
int ff_was_changed(int number);  /* 1 if the file was cut short or written to */

#endif
