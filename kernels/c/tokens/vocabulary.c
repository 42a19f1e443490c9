/* Read the vocabulary in a tokenizer's JSON file, if it is strict JSON. */
#include <stdlib.h>

#include "vocabulary.h"

enum { FF_CROWDED = 64 };  /* most slots searched for one piece; BERT's vocabulary needs 12 */

int ff_next(ff_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
    return r->at < r->end ? *r->at++ : -1;
}

static int hexadecimal(ff_reader *r, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        if (r->at == r->end)
            return 0;
        int c = *r->at, letter = c | 32;
        if (!(c >= '0' && c <= '9') && !(letter >= 'a' && letter <= 'f'))
            return 0;
        *value = *value << 4 | (uint32_t)(c <= '9' ? c - '0' : letter - 'a' + 10);
    }
    return 1;
}

int ff_put_utf8(uint8_t *to, uint32_t c)
{
    if (c < 0x80)
        return to[0] = (uint8_t)c, 1;
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    for (int i = more; i; i--, c >>= 6)
        to[i] = (uint8_t)(0x80 | (c & 0x3f));
    to[0] = (uint8_t)(0xf80 >> more | c);
    return more + 1;
}

/* Read an escape sequence after its backslash and write it as UTF-8. Returns the bytes written; 0: invalid. */
static int escaped(ff_reader *r, uint8_t *to)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end)
        return 0;
    int c = *r->at++;
    const char *known = c && c != 'u' ? strchr(names, c) : NULL;
    uint32_t point, half;
    if (known)
        return *to = (uint8_t)values[known - names], 1;
    if (c != 'u' || !hexadecimal(r, &point))
        return 0;
    if (point >= 0xd800 && point < 0xdc00) {
        if (r->end - r->at < 6 || *r->at++ != '\\' || *r->at++ != 'u' || !hexadecimal(r, &half) || half >> 10 != 0x37)
            return 0;
        point = 0x10000 + ((point & 0x3ff) << 10 | (half & 0x3ff));
    } else if (point >> 10 == 0x37)
        return 0;
    return ff_put_utf8(to, point);
}

/* Copy a non-ASCII character. Returns its bytes; 0: invalid. */
static int beyond_ascii(ff_reader *r, uint8_t *to)
{
    uint8_t again[4];
    int c = *r->at, more = c >= 0xf0 && c < 0xf8 ? 3 : c >= 0xe0 ? 2 : 1;
    if (c < 0xc0 || c >= 0xf8 || r->end - r->at <= more)
        return 0;
    uint32_t point = (uint32_t)c & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        if (r->at[i] >> 6 != 2)
            return 0;
        point = point << 6 | (r->at[i] & 0x3fu);
    }
    if (point > 0x10ffff || point >> 11 == 0x1b || ff_put_utf8(again, point) != more + 1)
        return 0;  /* too large, half a surrogate pair, or overlong */
    memcpy(to, r->at, (size_t)more + 1);
    r->at += more + 1;
    return more + 1;
}

int64_t ff_read_string(ff_reader *r, uint8_t *to)
{
    uint8_t *start = to;
    while (r->at < r->end) {
        int c = *r->at, n = 1;
        if (c == '"')
            return r->at++, to - start;
        if (c == '\\') {
            r->at++;
            n = escaped(r, to);
        } else if (c >= 0x80)
            n = beyond_ascii(r, to);
        else if (c >= 0x20)
            *to = *r->at++;
        else
            n = 0;
        if (!n)
            return -1;
        to += n;
    }
    return -1;
}

static int whole_number(ff_reader *r, int32_t *value)
{
    int64_t n = 0;
    int c = ff_next(r), first = c, digits = 0;
    for (; c >= '0' && c <= '9' && digits < 10; c = r->at < r->end ? *r->at++ : -1, digits++)
        n = 10 * n + c - '0';
    if (c >= 0)
        r->at--;
    *value = (int32_t)n;
    return digits && n <= INT32_MAX && (digits == 1 || first != '0') && !(c >= '0' && c <= '9');
}

/* Read pairs "piece": id up to the end of the object. Returns their number; -1: invalid. */
static int64_t read_pairs(ff_vocabulary *v, ff_reader *r)
{
    uint8_t *to = v->letters;
    int64_t count = 0;
    if (ff_next(r) != '{')
        return -1;
    int c = ff_next(r);
    for (; c == '"'; count++) {
        ff_piece *p = &v->pieces[count];
        int64_t n = ff_read_string(r, to);
        if (n < 0 || ff_next(r) != ':' || !whole_number(r, &p->id))
            return -1;
        int prefix = n >= 2 && to[0] == '#' && to[1] == '#' ? 2 : 0;
        p->kind = prefix ? FF_LATER_PIECE : FF_FIRST_PIECE;
        p->start = (uint32_t)(to - v->letters + prefix);
        p->length = (uint32_t)(n - prefix);
        to += n;
        int comma = ff_next(r);
        c = comma == ',' ? ff_next(r) : comma;
        if (c != (comma == ',' ? '"' : '}'))
            return -1;
    }
    return c == '}' ? count : -1;
}

/* Enter piece `number` into v->slots; a repeated piece takes the new id. Returns 0 if too many slots collide. */
static int enter(ff_vocabulary *v, int64_t number)
{
    ff_piece *p = &v->pieces[number], *known;
    const uint8_t *letters = v->letters + p->start;
    uint64_t h = ff_hash(letters, p->length, p->kind), slot = ff_slot(v, letters, p->length, p->kind);
    if (((slot - h) & v->mask) > FF_CROWDED)
        return 0;
    if (v->slots[slot]) {
        known = &v->pieces[(uint32_t)v->slots[slot] - 1];
        known->id = p->id;
        return 1;
    }
    v->slots[slot] = h >> 32 << 32 | (uint64_t)(number + 1);
    v->count++;
    if ((int32_t)p->length > v->longest[p->kind])
        v->longest[p->kind] = (int32_t)p->length;
    return 1;
}

int ff_read_vocabulary(ff_vocabulary *v, const uint8_t *json, int64_t length, int64_t *end)
{
    ff_reader r = {json, json + length};
    memset(v, 0, sizeof *v);
    if (length >= INT32_MAX)
        return FF_ODD;
    v->letters = malloc((size_t)length + FF_SLACK);
    v->pieces = malloc(((size_t)length / 5 + 1) * sizeof *v->pieces);  /* a pair has at least 5 bytes: "":0, */
    if (!v->letters || !v->pieces)
        return FF_NO_MEMORY;
    memset(v->letters, 0, (size_t)length + FF_SLACK);
    int64_t pairs = read_pairs(v, &r), slots = 64;
    *end = r.at - json;
    if (pairs < 0)
        return FF_ODD;
    while (slots < 2 * pairs)
        slots *= 2;
    v->mask = (uint64_t)slots - 1;
    if (!(v->slots = calloc((size_t)slots, sizeof *v->slots)))
        return FF_NO_MEMORY;
    for (int64_t i = 0; i < pairs; i++)
        if (!enter(v, i))
            return FF_ODD;
    for (int64_t i = 0; i < slots; i++)
        if (v->slots[i] && v->pieces[(uint32_t)v->slots[i] - 1].id > v->largest)
            v->largest = v->pieces[(uint32_t)v->slots[i] - 1].id;
    return FF_READ;
}

void ff_free_vocabulary(ff_vocabulary *v)
{
    free(v->letters);
    free(v->pieces);
    free(v->slots);
}
