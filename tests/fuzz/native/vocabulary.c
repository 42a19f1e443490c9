/* The JSON of a vocabulary: any bytes are refused or read, and each piece that was read is found. */
#include "tokens/vocabulary.h"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ff_vocabulary v;
    int64_t end = -1, entered = 0, counted = 0;
    int32_t largest = 0;
    uint8_t *json = room(size);
    memcpy(json, data, size);
    const int found = ff_read_vocabulary(&v, json, (int64_t)size, &end);
    CHECK(end >= 0 && end <= (int64_t)size, "the object ends at byte %lld", (long long)end);
    for (uint64_t slot = 0; found == FF_READ && !v.scored && slot <= v.mask; slot++) {
        if (!v.slots[slot])
            continue;
        const ff_piece *p = &v.pieces[(uint32_t)v.slots[slot] - 1];
        CHECK(p->id >= 0 && (int64_t)p->start + p->length <= (int64_t)size, "a piece lies outside its letters");
        CHECK((int32_t)p->length <= v.longest[p->kind], "a piece is longer than the longest");
        CHECK(ff_find(&v, v.letters + p->start, p->length, p->kind) == p->id, "a piece has another id");
        largest = p->id > largest ? p->id : largest;
        entered++;
    }
    for (int i = 0; i <= FF_LONGEST_PIECE; i++)
        counted += v.lengths[i];
    for (int64_t i = 0; found == FF_READ && v.scored && i < (int64_t)size; i++)
        CHECK(ff_find_piece(&v, json + i, (int64_t)size - i) < v.count, "a piece has no score");
    if (found == FF_READ)
        CHECK(v.scored ? counted <= v.count : entered == v.count && counted == v.count && largest == v.largest,
              "%lld pieces of %lld", (long long)entered, (long long)v.count);
    ff_free_vocabulary(&v);
    free(json);
    return 0;
}
