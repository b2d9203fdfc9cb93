"""A client of NFSv3 for tests: libnfs, called by ctypes.

    nfs_client.py SERVER EXPORT UID COMMAND [ARGUMENT...]

Prints what was read or listed, and ends with 0; or prints the name of the error, and ends with 1.
"""
import ctypes
import ctypes.util
import errno
import os
import re
import sys

nfs = ctypes.CDLL(ctypes.util.find_library("nfs"))
nfs.nfs_init_context.restype = ctypes.c_void_p
nfs.nfs_get_error.restype = ctypes.c_char_p
nfs.nfs_readdir.restype = ctypes.c_void_p


class Entry(ctypes.Structure):
    """The beginning of struct nfsdirent."""
    _fields_ = [("next", ctypes.c_void_p), ("name", ctypes.c_char_p)]


class Failed(Exception):
    pass


context = ctypes.c_void_p(nfs.nfs_init_context())


def check(result):
    if result < 0:
        name = errno.errorcode.get(-result, str(result))
        # What libnfs has no number for, it says in words.
        said = re.search(r"NFS3ERR_(\w+)", (nfs.nfs_get_error(context) or b"").decode())
        raise Failed("E" + said.group(1) if name == "EIO" and said else name)
    return result


def main(server, export, uid, command, *arguments):
    nfs.nfs_set_uid(context, int(uid))
    nfs.nfs_set_gid(context, int(uid))
    nfs.nfs_set_autoreconnect(context, -1)
    check(nfs.nfs_mount(context, server.encode(), export.encode()))
    paths = [argument.encode() for argument in arguments]

    def opened(path, flags):
        handle = ctypes.c_void_p()
        check(nfs.nfs_open(context, path, flags, ctypes.byref(handle)))
        return handle

    if command == "read":
        handle = opened(paths[0], os.O_RDONLY)
        buffer = ctypes.create_string_buffer(65536)
        length = check(nfs.nfs_read(context, handle, ctypes.c_uint64(65536), buffer))
        sys.stdout.write(buffer.raw[:length].decode())
    elif command == "write":
        handle = opened(paths[0], os.O_WRONLY)
        check(nfs.nfs_write(context, handle, ctypes.c_uint64(len(paths[1])), paths[1]))
        check(nfs.nfs_close(context, handle))
    elif command == "create":
        handle = ctypes.c_void_p()
        check(nfs.nfs_creat(context, paths[0], 0o644, ctypes.byref(handle)))
        check(nfs.nfs_write(context, handle, ctypes.c_uint64(len(paths[1])), paths[1]))
        check(nfs.nfs_close(context, handle))
    elif command == "list":
        folder = ctypes.c_void_p()
        check(nfs.nfs_opendir(context, paths[0], ctypes.byref(folder)))
        while entry := nfs.nfs_readdir(context, folder):
            name = ctypes.cast(entry, ctypes.POINTER(Entry)).contents.name.decode()
            if name not in (".", ".."):
                print(name)
    elif command == "chmod":
        check(nfs.nfs_chmod(context, paths[0], int(arguments[1], 8)))
    elif command == "mkdir":
        check(nfs.nfs_mkdir(context, paths[0]))
    elif command == "remove":
        check(nfs.nfs_unlink(context, paths[0]))
    elif command == "rename":
        check(nfs.nfs_rename(context, paths[0], paths[1]))
    elif command == "churn":
        # Of each three names one stays.
        for number in range(int(arguments[1])):
            name = paths[0] + b"/%d" % number
            check(nfs.nfs_mkdir(context, name))
            if number % 3 == 0:
                check(nfs.nfs_rename(context, name, name + b"-renamed"))
            elif number % 3 == 1:
                check(nfs.nfs_rmdir(context, name))
            else:
                check(nfs.nfs_rename(context, name, name + b"-moved"))
                check(nfs.nfs_rmdir(context, name + b"-moved"))
        print("done")
    else:
        raise Failed("no command " + command)


try:
    main(*sys.argv[1:])
except Failed as failed:
    print(failed)
    sys.exit(1)
