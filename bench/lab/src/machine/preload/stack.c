/* Keeps the stack of User-Mode Linux 6.1 in place while the kernel maps its memory anew.
 *
 * The stacks of kernel threads are in the area of vmalloc (CONFIG_VMAP_STACK). To flush a range of that area,
 * flush_tlb_kernel_range_common() calls munmap(2) and mmap(2) for each page of it, because no page ever
 * loses its mark as a new one. When a kernel thread purges freed areas (__purge_vmap_area_lazy), the range
 * may include that thread's own stack, whose first page has its thread_info. Between the two calls a signal
 * of the timer then needs this page (to_irq_stack), and so does the handler of the fault: it faults for ever.
 * Later kernels flush only what changed.
 *
 * This munmap(2) leaves out the stack that it runs on. The kernel maps the same pages there again.
 */

#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* THREAD_SIZE. Stacks begin at a multiple of it. */
#define STACK ((uintptr_t)16384)

int munmap(void *address, size_t length)
{
	uintptr_t start = (uintptr_t)address, end = start + length;
	uintptr_t stack = (uintptr_t)__builtin_frame_address(0) & ~(STACK - 1);
	uintptr_t stack_end = stack + STACK;

	if (start >= stack_end || end <= stack)
		return syscall(SYS_munmap, start, length);
	if (start < stack && syscall(SYS_munmap, start, stack - start) < 0)
		return -1;
	if (end > stack_end)
		return syscall(SYS_munmap, stack_end, end - stack_end);
	return 0;
}
