/* Runs a target on files, for compilers without libFuzzer: replay FILE ... With FASTFLOW_CALLERS=N, above 1, as many threads
   then run all of them at once. */
#include <pthread.h>

#include "fuzz.h"

enum { MOST_CALLERS = 16 };

typedef struct {
    uint8_t *data;
    size_t size;
} input;

typedef struct {
    const input *inputs;
    int count, first;
} caller;

static input read_input(const char *name)
{
    FILE *file = fopen(name, "rb");
    CHECK(file, "cannot open %s", name);
    fseek(file, 0, SEEK_END);
    const size_t size = (size_t)ftell(file);
    rewind(file);
    input found = {malloc(size ? size : 1), size};
    CHECK(fread(found.data, 1, size, file) == size, "cannot read %s", name);
    fclose(file);
    return found;
}

static void *run_all(void *context)
{
    const caller *c = context;
    for (int i = 0; i < c->count; i++) {  /* each caller begins elsewhere */
        const input *one = &c->inputs[(c->first + i) % c->count];
        LLVMFuzzerTestOneInput(one->data, one->size);
    }
    return NULL;
}

int main(int count, char **names)
{
    const char *asked = getenv("FASTFLOW_CALLERS");
    int callers = asked ? atoi(asked) : 1;
    callers = callers < MOST_CALLERS ? callers : MOST_CALLERS;
    input *inputs = calloc((size_t)count, sizeof *inputs);
    for (int i = 1; i < count; i++)
        inputs[i - 1] = read_input(names[i]);
    caller list[MOST_CALLERS] = {{inputs, count - 1, 0}};
    run_all(list);  /* first alone, as a target reads its programs in its first call */
    pthread_t threads[MOST_CALLERS];
    for (int i = 0; i < callers && callers > 1; i++) {
        list[i] = (caller){inputs, count - 1, i * count / callers};
        CHECK(!pthread_create(&threads[i], NULL, run_all, &list[i]), "no thread");
    }
    for (int i = 0; i < callers && callers > 1; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < count - 1; i++)
        free(inputs[i].data);
    free(inputs);
    printf("%d inputs\n", count - 1);
    return 0;
}
