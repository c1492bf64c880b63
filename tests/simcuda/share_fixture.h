/* Another process with a simulated device of its own, that is sent a descriptor: what two programs that share memory do. */
#ifndef SHARE_FIXTURE_H
#define SHARE_FIXTURE_H

#include "sim_test.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static inline bool send_descriptor(int socket, int fd)
{
    char byte = 0, room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(socket, &message, 0) == 1;
}

static inline int receive_descriptor(int socket)
{
    int fd = -1;
    char byte, room[CMSG_SPACE(sizeof fd)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) {
        return -1;
    }
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static inline void *as_shareable(int fd) { return (void *)(intptr_t)fd; }

/* The memory behind a descriptor at an address of this process, readable and writable; 0: refused. */
static inline CUdeviceptr open_shared(int fd, size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    bool opened = cuMemImportFromShareableHandle(&handle, as_shareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS &&
                  cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS && cuMemMap(address, bytes, 0, handle, 0) == CUDA_SUCCESS &&
                  cuMemRelease(handle) == CUDA_SUCCESS && cuMemSetAccess(address, bytes, &access, 1) == CUDA_SUCCESS;
    return opened ? address : 0;
}

/* A process that opens the memory it is sent, looks for `expected` in all of its bytes and leaves `answer` there. To be made before the
 * device is used, since a process that has used one cannot go on with it in a child. Returns the socket for the descriptor. */
static inline int start_reader(const char *words, size_t bytes, unsigned char expected, unsigned char answer, pid_t *reader)
{
    int sockets[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    *reader = fork();
    if (*reader == 0) {
        close(sockets[0]);
        sim_test_start(words);
        int fd = receive_descriptor(sockets[1]);
        CUdeviceptr address = fd >= 0 ? open_shared(fd, bytes) : 0;
        unsigned char *memory = (unsigned char *)(uintptr_t)address;
        size_t wrong = memory ? 0 : bytes;
        for (size_t i = 0; memory && i < bytes; i++) {
            wrong += memory[i] != expected;
            memory[i] = answer;
        }
        _exit(wrong ? 1 : 0);
    }
    assert_true(*reader > 0);
    close(sockets[1]);
    return sockets[0];
}

static inline void reader_must_have_seen_it(pid_t reader)
{
    int status;
    assert_int_equal(waitpid(reader, &status, 0), reader);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
