/* Mapped files that others may write to or cut short while they are read. */
#ifndef FASTFLOW_MAPPED_H
#define FASTFLOW_MAPPED_H

#include "cpu.h"

/* Watch the read-only map of the whole of an open file: pages that the file has lost read as zeros. Returns its number, -1 if
   too many are watched. */
int ff_watch(const void *pages, size_t bytes, int file);
void ff_unwatch(int number);    /* before it is unmapped */
int ff_was_changed(int number);  /* whether the file is shorter than its map or was written to since it is watched */

#endif
