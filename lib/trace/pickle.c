/*
 * A pickle as data: knows the opcodes that make numbers, text, lists and dictionaries (protocols 2 to 5), and refuses by name all that
 * would import or call something. Nothing of a pickle is ever run. Owns the memo. No locks; everything belongs to the call. Called by
 * read.c.
 */
#include "trace/values.h"
#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_NUMBER = 16, FARTHEST_MEMO = 1 << 28 };

/* What a memo entry refers to: kind + 1 above, the number below; so that most take 8 bytes. Others are in odd. */
typedef struct unpickler {
    cmi_reader *reader;
    cmi_values values;
    uint64_t *memo;
    size_t memo_room, memo_next;
    cmi_value *odd;
    size_t odd_count;
} unpickler;

static int fault(unpickler *u, const char *what) { return cmi_reader_fault(u->reader, "%s", what); }

/* The opcodes that run code or reach outside of the file. */
static const char *forbidden(unsigned char opcode)
{
    static const struct {
        unsigned char opcode;
        const char *name;
    } names[] = {
        {'c', "GLOBAL"}, {'R', "REDUCE"},    {'b', "BUILD"},   {'i', "INST"},         {'o', "OBJ"},
        {'P', "PERSID"}, {'Q', "BINPERSID"}, {0x81, "NEWOBJ"}, {0x92, "NEWOBJ_EX"},   {0x93, "STACK_GLOBAL"},
        {0x82, "EXT1"},  {0x83, "EXT2"},     {0x84, "EXT4"},   {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].opcode == opcode)
            return names[i].name;
    return NULL;
}

/* ---- bytes -------------------------------------------------------------------------------------------------------------------------- */

static int need(unpickler *u, size_t bytes)
{
    int got = cmi_reader_need(u->reader, bytes);
    return got == 1 ? 0 : got == 0 ? fault(u, "the pickle is cut off") : -1;
}

static int little(unpickler *u, size_t bytes, uint64_t *number)
{
    uint64_t value = 0;
    if (need(u, bytes) != 0)
        return -1;
    memcpy(&value, u->reader->text + u->reader->next, bytes);
    u->reader->next += bytes;
    *number = le64toh(value);
    return 0;
}

static int skip(unpickler *u, uint64_t bytes)
{
    while (bytes > 0) {
        size_t part = bytes < CMI_READER_BYTES ? (size_t)bytes : CMI_READER_BYTES;
        if (need(u, part) != 0)
            return -1;
        u->reader->next += part;
        bytes -= part;
    }
    return 0;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------------- */

static int push_integer(unpickler *u, int64_t number)
{
    return cmi_values_push(&u->values, (cmi_value){.integer = number, .kind = CMI_VALUE_INTEGER});
}

static int fixed_integer(unpickler *u, size_t bytes)
{
    uint64_t number;
    if (little(u, bytes, &number) != 0)
        return -1;
    return push_integer(u, bytes == 4 ? (int32_t)number : (int64_t)number);
}

/* Two's complement, least byte first, any length. */
static int long_integer(unpickler *u, size_t length_bytes)
{
    uint64_t length;
    if (little(u, length_bytes, &length) != 0)
        return -1;
    if (length > LONGEST_NUMBER)
        return fault(u, "a number of more than 128 bits");
    if (need(u, (size_t)length) != 0)
        return -1;
    const unsigned char *digits = (const unsigned char *)u->reader->text + u->reader->next;
    u->reader->next += (size_t)length;
    bool negative = length > 0 && digits[length - 1] >= 0x80;
    uint64_t number = negative ? UINT64_MAX : 0;
    for (size_t i = 0; i < length; i++) {
        if (i >= 8 && digits[i] != (negative ? 0xff : 0))
            return fault(u, "a number beyond 64 bits");
        if (i < 8)
            number = (number & ~(UINT64_C(0xff) << 8 * i)) | (uint64_t)digits[i] << 8 * i;
    }
    if (negative && number <= INT64_MAX)
        return fault(u, "a number beyond 64 bits");
    return cmi_values_push(&u->values,
                           (cmi_value){.natural = number, .kind = negative || number <= INT64_MAX ? CMI_VALUE_INTEGER : CMI_VALUE_NATURAL});
}

static int real(unpickler *u)
{
    uint64_t bits;
    cmi_value value = {.kind = CMI_VALUE_REAL};
    if (little(u, 8, &bits) != 0)
        return -1;
    bits = be64toh(htole64(bits));
    memcpy(&value.real, &bits, sizeof bits);
    return cmi_values_push(&u->values, value);
}

/* Text, or bytes taken as text. What is longer than any name is cut. */
static int text(unpickler *u, size_t length_bytes)
{
    uint64_t length;
    cmi_value value = {.kind = CMI_VALUE_STRING};
    if (little(u, length_bytes, &length) != 0)
        return -1;
    size_t kept = length < CMI_READER_BYTES ? (size_t)length : CMI_READER_BYTES;
    if (need(u, kept) != 0 || cmi_build_string(u->values.builder, u->reader->text + u->reader->next, kept, &value.id) != 0 ||
        skip(u, length) != 0)
        return -1;
    return cmi_values_push(&u->values, value);
}

static int constant(unpickler *u, cmi_value_kind kind, int64_t number)
{
    return cmi_values_push(&u->values, (cmi_value){.integer = number, .kind = kind});
}

/* ---- memo --------------------------------------------------------------------------------------------------------------------------- */

static int put(unpickler *u, uint64_t at)
{
    if (u->values.stack_count == 0)
        return fault(u, "nothing to remember");
    if (at >= FARTHEST_MEMO || at > 4 * (u->memo_next + 1024)) /* memos are numbered from 0 on */
        return fault(u, "a memo far beyond those before it");
    const cmi_value *value = &u->values.stack[u->values.stack_count - 1];
    if (at >= u->memo_room) {
        size_t room = u->memo_room == 0 ? 1024 : u->memo_room;
        while (room <= at)
            room *= 2;
        uint64_t *larger = realloc(u->memo, room * sizeof *larger);
        if (larger == NULL)
            return fault(u, "no host memory for its memo");
        memset(larger + u->memo_room, 0, (room - u->memo_room) * sizeof *larger);
        u->memo = larger;
        u->memo_room = room;
    }
    uint64_t kind = value->kind, number = value->id;
    if (value->kind != CMI_VALUE_STRING && value->kind != CMI_VALUE_OBJECT) {
        if (!cmi_grow(&u->odd, u->odd_count, sizeof *u->odd))
            return fault(u, "no host memory for its memo");
        u->odd[number = u->odd_count++] = *value;
    }
    u->memo[at] = (kind + 1) << 56 | number;
    u->memo_next = at >= u->memo_next ? (size_t)at + 1 : u->memo_next;
    return 0;
}

static int get(unpickler *u, size_t index_bytes)
{
    uint64_t at;
    if (little(u, index_bytes, &at) != 0)
        return -1;
    if (at >= u->memo_next || u->memo[at] == 0)
        return fault(u, "a memo that was never made");
    cmi_value value = {.id = (uint32_t)u->memo[at], .kind = (cmi_value_kind)((u->memo[at] >> 56) - 1)};
    if (value.kind != CMI_VALUE_STRING && value.kind != CMI_VALUE_OBJECT)
        value = u->odd[u->memo[at] & ((UINT64_C(1) << 56) - 1)];
    return cmi_values_push(&u->values, value);
}

static int put_at(unpickler *u, size_t index_bytes)
{
    uint64_t at;
    return little(u, index_bytes, &at) != 0 ? -1 : put(u, at);
}

/* ---- lists, tuples, dictionaries ------------------------------------------------------------------------------------------------------
 */

/* The last `count` values become a list (tuples are lists here): a new list slips in below them. */
static int gather(unpickler *u, size_t from, cmi_object_kind kind)
{
    cmi_values *v = &u->values;
    if (cmi_values_push_object(v, kind) != 0)
        return -1;
    cmi_value made = v->stack[v->stack_count - 1];
    memmove(v->stack + from + 1, v->stack + from, (v->stack_count - 1 - from) * sizeof *v->stack);
    v->stack[from] = made;
    return kind == CMI_OBJECT_DICT ? cmi_values_set_items(v, from + 1) : cmi_values_append(v, from + 1);
}

static int tuple(unpickler *u, size_t count)
{
    size_t floor = u->values.mark_count > 0 ? u->values.marks[u->values.mark_count - 1] : 0;
    if (u->values.stack_count < floor + count)
        return fault(u, "a tuple of values that are not there");
    return gather(u, u->values.stack_count - count, CMI_OBJECT_LIST);
}

static int above_mark(unpickler *u, int (*take)(cmi_values *values, size_t from))
{
    size_t from;
    return cmi_values_above_mark(&u->values, &from) != 0 ? -1 : take(&u->values, from);
}

static int gather_marked(unpickler *u, cmi_object_kind kind)
{
    size_t from;
    return cmi_values_above_mark(&u->values, &from) != 0 ? -1 : gather(u, from, kind);
}

static int take_last(unpickler *u, size_t count, int (*take)(cmi_values *values, size_t from))
{
    if (u->values.stack_count < count)
        return fault(u, "an item that is not there");
    return take(&u->values, u->values.stack_count - count);
}

/* ---- opcodes ------------------------------------------------------------------------------------------------------------------------ */

static int protocol(unpickler *u)
{
    uint64_t number;
    if (little(u, 1, &number) != 0)
        return -1;
    return number >= 2 && number <= 5 ? 0 : fault(u, "a pickle of a protocol that is not known (2 to 5 are)");
}

static int refuse(unpickler *u, unsigned char opcode)
{
    const char *name = forbidden(opcode);
    if (name != NULL)
        return cmi_reader_fault(u->reader,
                                "the opcode %s would run code or reach outside of the file; a memory snapshot is data alone, "
                                "and nothing was run",
                                name);
    return cmi_reader_fault(u->reader, "the opcode 0x%02x has no place in a memory snapshot", opcode);
}

static int step(unpickler *u, unsigned char opcode)
{
    cmi_values *v = &u->values;
    switch (opcode) {
    case 0x80: /* PROTO */
        return protocol(u);
    case 0x95: /* FRAME: the length of what follows, which is read in any case */
        return skip(u, 8);
    case '(':
        return cmi_values_mark(v);
    case '}':
        return cmi_values_push_object(v, CMI_OBJECT_DICT);
    case ']':
    case ')': /* EMPTY_TUPLE */
        return cmi_values_push_object(v, CMI_OBJECT_LIST);
    case 'd':
        return gather_marked(u, CMI_OBJECT_DICT);
    case 'l':
    case 't':
        return gather_marked(u, CMI_OBJECT_LIST);
    case 0x85: /* TUPLE1, TUPLE2, TUPLE3 */
    case 0x86:
    case 0x87:
        return tuple(u, opcode - 0x84u);
    case 'a':
        return take_last(u, 1, cmi_values_append);
    case 'e':
        return above_mark(u, cmi_values_append);
    case 's':
        return take_last(u, 2, cmi_values_set_items);
    case 'u':
        return above_mark(u, cmi_values_set_items);
    case 'N':
        return constant(u, CMI_VALUE_NONE, 0);
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return constant(u, CMI_VALUE_BOOL, opcode == 0x88);
    case 'K':
        return fixed_integer(u, 1);
    case 'M':
        return fixed_integer(u, 2);
    case 'J':
        return fixed_integer(u, 4);
    case 0x8a: /* LONG1, LONG4 */
        return long_integer(u, 1);
    case 0x8b:
        return long_integer(u, 4);
    case 'G':
        return real(u);
    case 0x8c: /* SHORT_BINUNICODE */
    case 'U':  /* SHORT_BINSTRING */
    case 'C':  /* SHORT_BINBYTES */
        return text(u, 1);
    case 'X': /* BINUNICODE, BINSTRING, BINBYTES */
    case 'T':
    case 'B':
        return text(u, 4);
    case 0x8d: /* BINUNICODE8, BINBYTES8, BYTEARRAY8 */
    case 0x8e:
    case 0x96:
        return text(u, 8);
    case 'q': /* BINPUT, LONG_BINPUT, MEMOIZE */
        return put_at(u, 1);
    case 'r':
        return put_at(u, 4);
    case 0x94:
        return put(u, u->memo_next);
    case 'h': /* BINGET, LONG_BINGET */
        return get(u, 1);
    case 'j':
        return get(u, 4);
    default:
        return refuse(u, opcode);
    }
}

int cmi_pickle_parse(cmi_reader *reader, cmi_builder *builder)
{
    unpickler u = {.reader = reader, .values = {.builder = builder}};
    int result = 0;
    for (unsigned char opcode = 0; result == 0 && opcode != '.';) {
        result = need(&u, 1);
        if (result != 0)
            break;
        opcode = (unsigned char)reader->text[reader->next];
        if (opcode == '.') /* STOP */
            result = cmi_values_finish(&u.values);
        else {
            reader->next++;
            result = step(&u, opcode);
        }
    }
    cmi_values_free(&u.values);
    free(u.memo);
    free(u.odd);
    return result;
}
