"""Opening a local file that must be one."""

import errno
import os
import stat


def open_plain(path: str, flags: int) -> int:
    """Open a plain file, for `open(..., opener=open_plain)`; refuse what could be read, or waited for, without end.

    Raises:
        IsADirectoryError: a folder.
        OSError: a pipe, a device or a socket, as a link in a dataset from elsewhere may lead to.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # a pipe would wait for its writer
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no plain file but a pipe or a device", path)
