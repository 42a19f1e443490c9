from cpython.buffer cimport PyBuffer_FillInfo

cdef extern from "mapped.h":
    int ff_watch(const void *, size_t, int)
    void ff_unwatch(int)
    int ff_was_changed(int)


cdef class Watched:
    """Hold ``pages``, the map of a whole open ``file`` (a descriptor, not kept), as a read-only buffer.

    If another program cuts the file short, the lost part reads as zeros instead of ending the process. ``changed`` is
    then true, and also if another program writes to the file.
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
    def changed(self):
        """Whether the file was cut short or written to, so that numbers read from it may be wrong."""
        return bool(ff_was_changed(self.number))
