/* Unmaps a range of memory around the stack that it runs on. Ends with 0 if only the stack is left, and with a
 * signal if the stack is gone. */

#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK 16384

static ucontext_t main_context, other_context;
static char *area;
static int result = 1;

static int is_mapped(char *page)
{
	unsigned char resident;

	return mincore(page, 4096, &resident) == 0;
}

static void unmap(void)
{
	if (munmap(area, 3 * STACK) == 0)
		result = is_mapped(area + STACK - 4096) || !is_mapped(area + STACK) ||
			 !is_mapped(area + 2 * STACK - 4096) || is_mapped(area + 2 * STACK);
}

int main(void)
{
	char *memory = mmap(0, 4 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return 2;
	area = (char *)(((uintptr_t)memory + STACK - 1) & ~(uintptr_t)(STACK - 1));
	getcontext(&other_context);
	other_context.uc_stack.ss_sp = area + STACK;
	other_context.uc_stack.ss_size = STACK;
	other_context.uc_link = &main_context;
	makecontext(&other_context, unmap, 0);
	swapcontext(&main_context, &other_context);
	return result;
}
