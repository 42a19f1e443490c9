/* Read the vocabulary in a tokenizer's JSON file, if it is strict JSON, and hash WordPiece's. */
#include <stdlib.h>

#include "vocabulary.h"

enum { FF_CROWDED = 64 };  /* most slots searched for one piece; BERT's vocabulary needs 12 */
enum { DIGITS = 32 };

typedef struct {
    const uint8_t *at, *end;  /* JSON that is left */
} reader;

/* Return the next byte that is not white space; -1: the end. */
static int next(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
    return r->at < r->end ? *r->at++ : -1;
}

static int hexadecimal(reader *r, uint32_t *value)
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
static int escaped(reader *r, uint8_t *to)
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
static int beyond_ascii(reader *r, uint8_t *to)
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

/* Copy a string after its quote. Returns its bytes; -1: invalid. */
static int64_t read_string(reader *r, uint8_t *to)
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

/* Read a number as serde_json does, which rounds twice: the digits as a double, then times or by a power of ten. An id
   is a whole number. Returns 0 if it is not such a JSON number, or has more digits or a larger power than fit. */
static int read_number(reader *r, int is_id, double *value)
{
    static const double powers[DIGITS] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
        1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31};
    uint64_t digits = 0;
    int c = next(r), negative = c == '-', power = 0, shift = 0, point = 0, zero, read = 0;
    if (negative)
        c = r->at < r->end ? *r->at++ : -1;
    zero = c == '0';
    for (;; c = r->at < r->end ? *r->at++ : -1) {
        if (c == '.' && !point && read && !is_id)
            point = 1, read = 0;
        else if (c >= '0' && c <= '9') {
            if (digits > (UINT64_MAX - 9) / 10 || (zero && read && !point))
                return 0;
            digits = 10 * digits + (uint64_t)(c - '0');
            read++, shift -= point;
        } else
            break;
    }
    if (!read || (is_id && (negative || digits > INT32_MAX)))
        return 0;
    if ((c == 'e' || c == 'E') && !is_id) {
        int sign = r->at < r->end && (*r->at == '-' || *r->at == '+') ? *r->at++ : '+';
        for (read = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9' && read < 4; read++)
            power = 10 * power + *r->at++ - '0';
        if (!read)
            return 0;
        shift += sign == '-' ? -power : power;
    } else if (c >= 0)
        r->at--;
    if (shift <= -DIGITS || shift >= DIGITS)
        return 0;
    double found = shift < 0 ? (double)digits / powers[-shift] : (double)digits * powers[shift];
    *value = negative ? -found : found;
    return 1;
}

/* Read pairs "piece": id, or ["piece", score], to the end of the object or array. Returns their number; -1: invalid. */
static int64_t read_pairs(ff_vocabulary *v, reader *r)
{
    const int open = next(r), scored = v->scored = open == '[', first = scored ? '[' : '"';
    uint8_t *to = v->letters;
    int64_t count = 0;
    if (!scored && open != '{')
        return -1;
    int c = next(r);
    for (; c == first; count++) {
        double value;
        int64_t n = !scored || next(r) == '"' ? read_string(r, to) : -1;
        if (n < 0 || n > FF_LONGEST_PIECE || next(r) != (scored ? ',' : ':') || !read_number(r, !scored, &value)
            || (scored && next(r) != ']'))
            return -1;
        if (scored)
            v->scores[count] = value;
        int prefix = !scored && n >= 2 && to[0] == '#' && to[1] == '#' ? 2 : 0;
        v->pieces[count] = (ff_piece){(uint32_t)(to - v->letters + prefix), (uint32_t)(n - prefix),
                                      scored ? (int32_t)count : (int32_t)value, prefix > 0};
        to += n;
        int comma = next(r);
        c = comma == ',' ? next(r) : comma;
        if (c != (comma == ',' ? first : scored ? ']' : '}'))
            return -1;
    }
    return c == (scored ? ']' : '}') ? count : -1;
}

/* Enter piece `number` into v->slots; a repeated piece takes the new id. Returns 0 if too many slots collide. */
static int enter(ff_vocabulary *v, int64_t number)
{
    ff_piece *p = &v->pieces[number];
    const uint8_t *letters = v->letters + p->start;
    uint64_t h = ff_hash(letters, p->length, p->kind), slot = ff_slot(v, letters, p->length, p->kind);
    if (((slot - h) & v->mask) > FF_CROWDED)
        return 0;
    if (v->slots[slot]) {
        v->pieces[(uint32_t)v->slots[slot] - 1].id = p->id;
        return 1;
    }
    v->slots[slot] = h >> 32 << 32 | (uint64_t)(number + 1);
    v->count++;
    ff_count_length(v, letters - 2 * p->kind, p->length + 2 * p->kind);
    if ((int32_t)p->length > v->longest[p->kind])
        v->longest[p->kind] = (int32_t)p->length;
    return 1;
}

/* Make WordPiece's hash table of v->pieces (count). */
static int enter_all(ff_vocabulary *v, int64_t count)
{
    uint64_t slots = 64;
    while (slots < 2 * (uint64_t)count)
        slots *= 2;
    v->mask = slots - 1;
    if (!(v->slots = calloc((size_t)slots, sizeof *v->slots)))
        return FF_NO_MEMORY;
    for (int64_t i = 0; i < count; i++)
        if (!enter(v, i))
            return FF_ODD;
    for (uint64_t i = 0; i < slots; i++)
        if (v->slots[i] && v->pieces[(uint32_t)v->slots[i] - 1].id > v->largest)
            v->largest = v->pieces[(uint32_t)v->slots[i] - 1].id;
    return FF_READ;
}

int ff_read_vocabulary(ff_vocabulary *v, const uint8_t *json, int64_t length, int64_t *end)
{
    reader r = {json, json + length};
    memset(v, 0, sizeof *v);
    if (length >= INT32_MAX)
        return FF_ODD;
    size_t most = (size_t)length / 5 + 1;  /* a pair has at least 5 bytes: "":0, */
    v->letters = calloc((size_t)length + FF_SLACK, 1);
    v->pieces = malloc(most * sizeof *v->pieces);
    v->scores = malloc(most * sizeof *v->scores);
    if (!v->letters || !v->pieces || !v->scores)
        return FF_NO_MEMORY;
    int64_t pairs = read_pairs(v, &r);
    *end = r.at - json;
    if (pairs < v->scored)
        return FF_ODD;
    return v->scored ? ff_build_trie(v, pairs) : enter_all(v, pairs);
}

void ff_free_vocabulary(ff_vocabulary *v)
{
    free(v->letters);
    free(v->pieces);
    free(v->slots);
    free(v->scores);
    free(v->units);
}
