from cpython.buffer cimport PyBuffer_FillInfo

cdef extern from "mapped.h":
    int ff_watch(const void *, size_t, int)
    void ff_unwatch(int)
    int ff_was_cut(int)


cdef class Watched:
    """The bytes of ``pages``, the map of the whole of an open ``file`` (a descriptor, not kept), as a read-only buffer.

    If others cut the file short, what is gone reads as zeros and ``cut`` is true; without this the process would end.
    """

    cdef const unsigned char[::1] pages
    cdef int number

    def __cinit__(self, const unsigned char[::1] pages, int file):
        self.number = -1
        self.pages = pages
        if pages.shape[0]:
            self.number = ff_watch(&pages[0], <size_t>pages.shape[0], file)

    def __dealloc__(self):
        ff_unwatch(self.number)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void *>&self.pages[0], self.pages.shape[0], True, flags)

    @property
    def cut(self):
        """Whether the file is or was shorter than its map, so that numbers may have been read as zeros."""
        return bool(ff_was_cut(self.number))
