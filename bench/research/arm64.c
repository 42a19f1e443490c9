/* Plugin of qemu-aarch64: prints the instructions executed so far at each sched_get_priority_max(1000). */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

#define U uint64_t
typedef struct qemu_plugin_tb block;  /* instructions that are translated and executed together */
void qemu_plugin_register_vcpu_tb_trans_cb(U id, void (*)(U, block *));
void qemu_plugin_register_vcpu_tb_exec_inline(block *, int, void *, U);
void qemu_plugin_register_vcpu_syscall_cb(U id, void (*)(U, unsigned, int64_t, U, U, U, U, U, U, U, U));
size_t qemu_plugin_tb_n_insns(const block *);

int qemu_plugin_version = 1;
static U executed;

static void translated(U id, block *b)
{
    qemu_plugin_register_vcpu_tb_exec_inline(b, 0, &executed, qemu_plugin_tb_n_insns(b));
}

static void called(U id, unsigned cpu, int64_t number, U a, U b, U c, U d, U e, U f, U g, U h)
{
    if (number == 125 && a == 1000)
        printf("executed %" PRIu64 "\n", executed), fflush(stdout);
}

int qemu_plugin_install(U id, const void *info, int count, char **values)
{
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
