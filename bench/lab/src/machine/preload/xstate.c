/* Lets User-Mode Linux 6.1 set the registers of its processes on a host with AMX.
 *
 * User-Mode Linux 6.1 passes 2,696 bytes of extended processor state (XSAVE) to ptrace(2),
 * HOST_FP_SIZE of arch/x86/um. With AMX the host's state is longer, and the host refuses a part of a
 * state (EFAULT, xstateregs_set of arch/x86/kernel/fpu/regset.c). Later kernels ask for the length.
 *
 * This ptrace(2) replaces the one of the C library. It writes a short state over the beginning of the
 * present one, and passes the whole.
 */

#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* More than any processor has: with AMX's tile data, 11,008 bytes. */
static _Thread_local char whole_state[16384] __attribute__((aligned(64)));

static long set_state(long pid, const struct iovec *part)
{
	struct iovec whole = { whole_state, sizeof(whole_state) };

	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole) < 0)
		return -1;
	if (part->iov_len >= whole.iov_len)
		return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, part);
	memcpy(whole_state, part->iov_base, part->iov_len);
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	long pid, address, data, word, result;

	va_start(arguments, request);
	pid = va_arg(arguments, pid_t);
	address = va_arg(arguments, long);
	data = va_arg(arguments, long);
	va_end(arguments);
	if (request == PTRACE_SETREGSET && address == NT_X86_XSTATE)
		return set_state(pid, (const struct iovec *)data);
	if (request != PTRACE_PEEKTEXT && request != PTRACE_PEEKDATA && request != PTRACE_PEEKUSER)
		return syscall(SYS_ptrace, request, pid, address, data);
	/* The system call stores the word that the C library's function returns. */
	result = syscall(SYS_ptrace, request, pid, address, &word);
	return result < 0 ? result : word;
}
