/* Rewrite JPEGs without loss: add restart markers, and make baseline files of progressive ones.
 *
 * Names and figures are those of ITU-T T.81. `add_markers` walks the entropy code of a baseline file, copies its bits and
 * codes anew only the DC differences at which a predictor is reset. `to_baseline` decodes all scans to coefficients and
 * codes them again in one scan. Neither touches a coefficient or a quantisation table.
 *
 * The bytes may be anything. All work is bounded by the length of the file, all memory by the file's or by the number of
 * coefficients, which is checked against the length first. tests/images/test_restart.py has mutants under ASAN and UBSAN.
 */
#ifndef WITHOUT_PYTHON /* the fuzzer of the tests */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* What is in the way, in the words that users read. NULL is success. */
typedef const char *Reason;
static const char NO_MEMORY[] = "no memory";
static const char NOT_A_JPEG[] = "not a JPEG";
static const char TRUNCATED[] = "truncated";
static const char BROKEN_HEADER[] = "broken header";
static const char BROKEN_CODE[] = "broken entropy code";
static const char STRAY_BYTES[] = "bytes between segments";
static const char PROGRESSIVE[] = "progressive";
static const char NOT_HUFFMAN[] = "arithmetic, lossless or hierarchical";
static const char NOT_8_BITS[] = "not 8 bits a sample";
static const char SEVERAL_SCANS[] = "several scans";
static const char SCANS_INCOMPLETE[] = "scans that leave coefficients out";
static const char TABLE_FULL[] = "no room in a Huffman table";
static const char TABLES_BETWEEN[] = "quantization tables between scans";
static const char OUT_OF_RANGE[] = "coefficients out of range";
static const char TOO_LARGE[] = "too many pixels";
static const char TOO_MANY_SEGMENTS[] = "too many segments";
static const char WRONG_INTERVAL[] = "an interval that divides no row";

enum { SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD, DHT = 0xC4, RST0 = 0xD0, RST7 = 0xD7 };
enum { MOST_COMPONENTS = 4, MOST_BLOCKS = 10 /* in an MCU, B.2.3 */, MOST_SCANS = 100, MOST_SEGMENTS = 65536, FAST_BITS = 9, AC_BITS = 10 };
/* A block's codes may run beyond the end of the data before that is noticed: at most 64 codes of 31 bits. */
enum { PADDING = 512 };

typedef struct {
    uint8_t counts[17], symbols[256]; /* codes of each length; what they stand for, by rising code */
    int size;
    bool defined;
    int32_t max_code[17], first[17]; /* F.2.2.3: the largest code of a length, and what leads from a code to its place */
    uint16_t fast[1 << FAST_BITS];   /* by the next bits: length and symbol of a code that is no longer, else 0 */
} Table;

typedef struct {
    int id, h, v;        /* sampling factors */
    int dc, ac;          /* tables of the present scan */
    int wide, high;      /* blocks that a scan of this component alone has */
    int stride;          /* blocks in a row, those that only fill an MCU included */
    int16_t *blocks;     /* coefficients in zigzag order; of `to_baseline` alone */
    int8_t bits[64];     /* how many low bits of a coefficient have not come yet; -1 before its first scan */
} Component;

typedef struct {
    const uint8_t *data;
    size_t size;
    int frame; /* its marker; 0 before it */
    int height, width, components;
    Component component[MOST_COMPONENTS];
    Table dc[4], ac[4];
    uint32_t interval; /* MCUs */
    int mcu_width, mcu_height; /* pixels */
    uint32_t columns, rows; /* MCUs */
    /* The present scan. */
    int scanned[MOST_COMPONENTS], in_scan;
    int from, to, high_bit, low_bit; /* Ss, Se, Ah, Al */
    uint8_t *code;     /* without stuffed bytes and markers, then PADDING bytes */
    uint64_t *borders; /* where each restart interval begins in it, in bytes, and where the last one ends */
    size_t most_borders, intervals;
    size_t code_end;   /* of the scan in `data`: the marker behind it */
} Jpeg;

static inline uint32_t read16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }

/* ---- Huffman tables ------------------------------------------------------------------------------------------- */

static Reason build_table(Table *table) {
    int32_t code = 0;
    int place = 0;
    for (int length = 1; length <= 16; length++) {
        table->first[length] = place - code;
        place += table->counts[length];
        code += table->counts[length];
        if (code > 1 << length) return BROKEN_HEADER;
        table->max_code[length] = table->counts[length] ? code - 1 : -1;
        code <<= 1;
    }
    table->size = place;
    table->defined = true;
    memset(table->fast, 0, sizeof table->fast);
    code = place = 0;
    for (int length = 1; length <= FAST_BITS; length++, code <<= 1)
        for (int i = 0; i < table->counts[length]; i++, place++, code++)
            for (int32_t j = code << (FAST_BITS - length); j < (code + 1) << (FAST_BITS - length); j++)
                table->fast[j] = (uint16_t)(length << 8 | table->symbols[place]);
    return NULL;
}

static Reason read_tables(Jpeg *jpeg, size_t at, size_t end) {
    while (at < end) {
        int kind = jpeg->data[at] >> 4, id = jpeg->data[at] & 15, size = 0;
        if (end - at < 17 || kind > 1 || id > 3) return BROKEN_HEADER;
        Table *table = kind ? &jpeg->ac[id] : &jpeg->dc[id];
        memset(table, 0, sizeof *table);
        for (int length = 1; length <= 16; length++) {
            table->counts[length] = jpeg->data[at + (size_t)length];
            size += table->counts[length];
        }
        if (size > 256 || end - at - 17 < (size_t)size) return BROKEN_HEADER;
        memcpy(table->symbols, jpeg->data + at + 17, (size_t)size);
        for (int i = 0; !kind && i < size; i++)
            if (table->symbols[i] > 15) return BROKEN_HEADER;
        Reason reason = build_table(table);
        if (reason) return reason;
        at += 17 + (size_t)size;
    }
    return NULL;
}

/* Return the length of the code at the top of 16 bits and its symbol; 0 where there is none. */
static inline int look_up(const Table *table, uint32_t bits, int *symbol) {
    int found = table->fast[bits >> (16 - FAST_BITS)];
    if (found) {
        *symbol = found & 255;
        return found >> 8;
    }
    for (int length = FAST_BITS + 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (16 - length));
        if (code <= table->max_code[length]) {
            *symbol = table->symbols[(code + table->first[length]) & 255];
            return length;
        }
    }
    return 0;
}

/* Return a symbol's code and its length; length 0 where the table has none. */
static uint32_t code_of(const Table *table, int symbol, int *length) {
    uint32_t code = 0;
    int place = 0;
    for (*length = 1; *length <= 16; ++*length, code <<= 1)
        for (int i = 0; i < table->counts[*length]; i++, place++, code++)
            if (table->symbols[place] == symbol) return code;
    *length = 0;
    return 0;
}

/* ---- Header --------------------------------------------------------------------------------------------------- */

static Reason read_frame(Jpeg *jpeg, int marker, size_t at, size_t length) {
    const uint8_t *body = jpeg->data + at;
    if (jpeg->frame || length < 6) return BROKEN_HEADER;
    if (marker > 0xC2) return NOT_HUFFMAN;
    if (body[0] != 8) return NOT_8_BITS;
    jpeg->frame = marker;
    jpeg->height = (int)read16(body + 1);
    jpeg->width = (int)read16(body + 3);
    jpeg->components = body[5];
    if (!jpeg->height || !jpeg->width || jpeg->components < 1 || jpeg->components > MOST_COMPONENTS) return BROKEN_HEADER;
    if (length != 6 + 3 * (size_t)jpeg->components) return BROKEN_HEADER;
    int h_max = 1, v_max = 1, blocks = 0;
    for (int c = 0; c < jpeg->components; c++) {
        Component *component = &jpeg->component[c];
        component->id = body[6 + 3 * c];
        component->h = body[7 + 3 * c] >> 4;
        component->v = body[7 + 3 * c] & 15;
        if (component->h < 1 || component->h > 4 || component->v < 1 || component->v > 4) return BROKEN_HEADER;
        if (jpeg->components == 1) component->h = component->v = 1; /* never interleaved: its MCU is a block, A.2.2 */
        h_max = component->h > h_max ? component->h : h_max;
        v_max = component->v > v_max ? component->v : v_max;
        blocks += component->h * component->v;
    }
    if (blocks > MOST_BLOCKS) return BROKEN_HEADER;
    jpeg->mcu_width = 8 * h_max;
    jpeg->mcu_height = 8 * v_max;
    jpeg->columns = (uint32_t)((jpeg->width + jpeg->mcu_width - 1) / jpeg->mcu_width);
    jpeg->rows = (uint32_t)((jpeg->height + jpeg->mcu_height - 1) / jpeg->mcu_height);
    for (int c = 0; c < jpeg->components; c++) {
        Component *component = &jpeg->component[c];
        int width = (jpeg->width * component->h + h_max - 1) / h_max; /* A.1.1 */
        int height = (jpeg->height * component->v + v_max - 1) / v_max;
        component->wide = (width + 7) / 8;
        component->high = (height + 7) / 8;
        component->stride = (int)jpeg->columns * component->h;
        memset(component->bits, -1, sizeof component->bits);
    }
    return NULL;
}

static Reason read_scan_header(Jpeg *jpeg, size_t at, size_t length) {
    const uint8_t *body = jpeg->data + at;
    if (!jpeg->frame || length < 4) return BROKEN_HEADER;
    jpeg->in_scan = body[0];
    if (jpeg->in_scan < 1 || jpeg->in_scan > jpeg->components || length != 4 + 2 * (size_t)jpeg->in_scan) return BROKEN_HEADER;
    for (int i = 0, least = 0; i < jpeg->in_scan; i++) { /* in the frame's order, B.2.3 */
        int c = least;
        while (c < jpeg->components && jpeg->component[c].id != body[1 + 2 * i]) c++;
        if (c == jpeg->components) return BROKEN_HEADER;
        jpeg->component[c].dc = body[2 + 2 * i] >> 4;
        jpeg->component[c].ac = body[2 + 2 * i] & 15;
        if (jpeg->component[c].dc > 3 || jpeg->component[c].ac > 3) return BROKEN_HEADER;
        jpeg->scanned[i] = c;
        least = c + 1;
    }
    const uint8_t *rest = body + 1 + 2 * jpeg->in_scan;
    jpeg->from = rest[0];
    jpeg->to = rest[1];
    jpeg->high_bit = rest[2] >> 4;
    jpeg->low_bit = rest[2] & 15;
    return NULL;
}

/* Read segments from `*at` on until the header of a scan or the end marker, which `*marker` is then; `*at` is behind it. */
static Reason read_segments(Jpeg *jpeg, size_t *at, int *marker) {
    const uint8_t *data = jpeg->data;
    for (;;) {
        if (jpeg->size - *at < 2) return TRUNCATED;
        if (data[*at] != 0xFF) return STRAY_BYTES;
        if (data[*at + 1] == 0xFF) { /* fill */
            ++*at;
            continue;
        }
        *marker = data[*at + 1];
        *at += 2;
        if (*marker == EOI) return NULL;
        if (*marker < 0xC0 || (*marker >= RST0 && *marker <= SOI)) return BROKEN_HEADER;
        if (jpeg->size - *at < 2) return TRUNCATED;
        size_t length = read16(data + *at), body = *at + 2;
        if (length < 2) return BROKEN_HEADER;
        if (jpeg->size - *at < length) return TRUNCATED;
        Reason reason = NULL;
        if (*marker == DHT) reason = read_tables(jpeg, body, *at + length);
        else if (*marker == 0xC8 || *marker == 0xCC || *marker == 0xDC || *marker == 0xDE || *marker == 0xDF) reason = NOT_HUFFMAN;
        else if (*marker <= 0xCF) reason = read_frame(jpeg, *marker, body, length - 2);
        else if (*marker == DRI) {
            if (length != 4) reason = BROKEN_HEADER;
            else jpeg->interval = read16(data + body);
        } else if (*marker == SOS) reason = read_scan_header(jpeg, body, length - 2);
        if (reason) return reason;
        *at += length;
        if (*marker == SOS) return NULL;
    }
}

/* ---- Bits ----------------------------------------------------------------------------------------------------- */

/* Copy the entropy code of a scan of `mcus` MCUs to `code`, without stuffed bytes and restart markers. */
static Reason unstuff(Jpeg *jpeg, size_t at, uint64_t mcus) {
    size_t length = 0;
    uint64_t wanted = jpeg->interval ? (mcus + jpeg->interval - 1) / jpeg->interval : 1;
    if (wanted > jpeg->size - at) return TRUNCATED; /* each interval has a byte at least */
    if (wanted + 1 > jpeg->most_borders) {
        uint64_t *borders = realloc(jpeg->borders, (size_t)(wanted + 1) * sizeof *borders);
        if (!borders) return NO_MEMORY;
        jpeg->borders = borders;
        jpeg->most_borders = (size_t)wanted + 1;
    }
    jpeg->intervals = 0;
    jpeg->borders[jpeg->intervals++] = 0;
    for (;;) {
        const uint8_t *marker = memchr(jpeg->data + at, 0xFF, jpeg->size - at);
        if (!marker || marker + 1 == jpeg->data + jpeg->size) return TRUNCATED;
        size_t run = (size_t)(marker - (jpeg->data + at));
        memcpy(jpeg->code + length, jpeg->data + at, run);
        length += run;
        at += run;
        if (marker[1] == 0) jpeg->code[length++] = 0xFF;
        else if (marker[1] >= RST0 && marker[1] <= RST7) {
            if (jpeg->intervals >= wanted || marker[1] != RST0 + ((jpeg->intervals - 1) & 7)) return BROKEN_CODE;
            jpeg->borders[jpeg->intervals++] = length;
        } else break;
        at += 2;
    }
    if (jpeg->intervals != wanted) return TRUNCATED;
    jpeg->borders[wanted] = length;
    memset(jpeg->code + length, 0, PADDING);
    jpeg->code_end = at;
    return NULL;
}

/* Return the 57 or more bits from `position` on, at the top. */
static inline uint64_t peek(const uint8_t *code, uint64_t position) {
    const uint8_t *p = code + (position >> 3);
    uint64_t bits = (uint64_t)p[0] << 56 | (uint64_t)p[1] << 48 | (uint64_t)p[2] << 40 | (uint64_t)p[3] << 32 |
                    (uint64_t)p[4] << 24 | (uint64_t)p[5] << 16 | (uint64_t)p[6] << 8 | p[7]; /* one instruction */
    return bits << (position & 7);
}

/* Return the number that `size` bits at the top stand for (F.2.2.1, EXTEND). */
static inline int32_t extend(uint64_t bits, int size) {
    if (!size) return 0;
    int32_t value = (int32_t)(bits >> (64 - size));
    return value >> (size - 1) ? value : value - (1 << size) + 1;
}

/* Return how many bits the number takes (F.1.2.1.1, SSSS). */
static inline int category(int32_t value) {
    uint32_t rest = (uint32_t)(value < 0 ? -value : value);
#if defined(__GNUC__)
    return rest ? 32 - __builtin_clz(rest) : 0;
#else
    int size = 0;
    for (; rest; rest >>= 1) size++;
    return size;
#endif
}

typedef struct {
    uint8_t *start, *at, *end;
    uint64_t bits; /* the last `count` bits, fewer than 8, are not written yet */
    int count;
    bool full;
} Writer;

static void put_bytes(Writer *writer, const void *bytes, size_t length) {
    if ((size_t)(writer->end - writer->at) < length) {
        writer->full = true;
        return;
    }
    memcpy(writer->at, bytes, length);
    writer->at += length;
}

static void put_bits(Writer *writer, uint32_t value, int count) {
    writer->bits = writer->bits << count | (value & (((uint64_t)1 << count) - 1));
    writer->count += count;
    while (writer->count >= 8) {
        writer->count -= 8;
        uint8_t byte = (uint8_t)(writer->bits >> writer->count);
        if (writer->end - writer->at < 2) {
            writer->full = true;
            return;
        }
        *writer->at++ = byte;
        if (byte == 0xFF) *writer->at++ = 0;
    }
}

static void put_value(Writer *writer, int32_t value, int size) {
    put_bits(writer, (uint32_t)(value < 0 ? value + (1 << size) - 1 : value), size);
}

/* Fill the last byte with ones and write a marker. */
static void put_marker(Writer *writer, int marker) {
    if (writer->count) put_bits(writer, 0xFF, 8 - writer->count);
    const uint8_t bytes[2] = {0xFF, (uint8_t)marker};
    put_bytes(writer, bytes, 2);
}

static void copy_bits(Writer *writer, const uint8_t *code, uint64_t from, uint64_t to) {
    while (from < to) {
        uint64_t left = to - from, bits = peek(code, from);
        if (!writer->count && left >= 56) {
            if (writer->end - writer->at < 14) {
                writer->full = true;
                return;
            }
            uint64_t holes = ~bits & ~(uint64_t)0xFF; /* a byte of ones is a zero here: found in all seven at once */
            bool has_ones = (holes - 0x0101010101010100u) & bits & 0x8080808080808000u;
            for (int shift = 56; shift > 0; shift -= 8) {
                uint8_t byte = (uint8_t)(bits >> shift);
                *writer->at++ = byte;
                if (has_ones && byte == 0xFF) *writer->at++ = 0;
            }
            from += 56;
        } else {
            int count = 8 - writer->count;
            if ((uint64_t)count > left) count = (int)left;
            put_bits(writer, (uint32_t)(bits >> (64 - count)), count);
            from += (uint64_t)count;
        }
    }
}

/* ---- add_markers ---------------------------------------------------------------------------------------------- */

/* A DC difference that is coded anew: the first of a component in a segment, whose predictor is 0 now, or in an interval
 * of the old file, whose predictor was. The old code goes on `after` it; what comes before it ends at `before`. */
typedef struct {
    uint64_t before, after;
    int32_t difference;
    bool begins; /* a segment */
} Splice;

/* What the next AC_BITS bits of an AC code say: how many bits whole symbols with their values take, how many
 * coefficients they pass, whether the last one ends the block; and how many bits the first one takes alone. Several
 * symbols a look-up make the walk 1.4 times as fast as one. */
typedef struct {
    uint32_t bits : 4, ends : 1, step : 11, first_bits : 8, first_step : 8;
} Jump;

static void build_jumps(const Table *table, Jump *jumps) {
    memset(jumps, 0, sizeof(Jump) << AC_BITS);
    uint32_t code = 0;
    int place = 0;
    for (int length = 1; length <= AC_BITS; length++, code <<= 1) {
        for (int i = 0; i < table->counts[length]; i++, place++, code++) {
            int symbol = table->symbols[place], size = symbol & 15, run = symbol >> 4;
            if (!size && run && run != 15) continue; /* no such symbol in a baseline file: `look_up` finds and refuses it */
            Jump jump = {.first_bits = (uint8_t)(length + size), .first_step = symbol ? (uint8_t)(run + 1) : 0};
            for (uint32_t j = code << (AC_BITS - length); j < (code + 1) << (AC_BITS - length); j++) jumps[j] = jump;
        }
    }
    for (uint32_t i = 0; i < 1u << AC_BITS; i++) {
        Jump *jump = &jumps[i];
        uint32_t bits = 0, step = 0;
        while (true) {
            const Jump *next = &jumps[(i << bits) & ((1u << AC_BITS) - 1)];
            if (!next->first_bits || bits + next->first_bits > AC_BITS) break;
            bits += next->first_bits;
            step += next->first_step;
            if (!next->first_step) {
                jump->ends = 1;
                break;
            }
        }
        jump->bits = bits & 15;
        jump->step = step & 2047;
    }
}

/* Pass over the AC codes of a block; `*position` is behind them then. */
static inline bool pass_ac(const uint8_t *code, const Table *table, const Jump *jumps, uint64_t *position) {
    uint64_t at = *position;
    for (int k = 1; k < 64;) {
        uint64_t bits = peek(code, at);
        for (int room = 57; room >= 31 && k < 64;) { /* a symbol and its value take 31 bits at most */
            Jump jump = jumps[bits >> (64 - AC_BITS)];
            int taken = jump.bits, step = jump.step;
            bool ends = jump.ends;
            if (!taken || k + step > 64 - ends) { /* one symbol only: the next block is not to be entered */
                taken = jump.first_bits, step = jump.first_step, ends = !step;
                if (!taken) {
                    int symbol, length = look_up(table, (uint32_t)(bits >> 48), &symbol);
                    if (!length || (symbol && !(symbol & 15) && symbol != 0xF0)) return false;
                    taken = length + (symbol & 15), step = symbol ? (symbol >> 4) + 1 : 0, ends = !symbol;
                }
            }
            at += (uint64_t)taken;
            bits <<= taken;
            room -= taken;
            k += step;
            if (ends) {
                *position = at;
                return k <= 64;
            }
        }
        if (k > 64) return false;
    }
    *position = at;
    return true;
}

/* Walk the scan and note the splices that segments of `mcus` MCUs take, and where the code ends. */
static Reason walk(const Jpeg *jpeg, uint32_t mcus, const Jump (*jumps)[1 << AC_BITS], Splice *splices, size_t *count, uint64_t *end) {
    int32_t old_level[MOST_COMPONENTS] = {0}, level[MOST_COMPONENTS] = {0};
    size_t interval = 0;
    uint64_t position = 0, limit = jpeg->borders[1] * 8, all = (uint64_t)jpeg->columns * jpeg->rows;
    uint32_t old_left = jpeg->interval ? jpeg->interval : UINT32_MAX, left = 0;
    Splice *splice = splices;
    for (uint64_t m = 0; m < all; m++, old_left--, left--) {
        uint64_t before = position;
        bool begins = !left, is_spliced = begins;
        if (!old_left) {
            if (limit - position > 7) return BROKEN_CODE;
            interval++;
            position = jpeg->borders[interval] * 8;
            limit = jpeg->borders[interval + 1] * 8;
            old_left = jpeg->interval;
            memset(old_level, 0, sizeof old_level);
            is_spliced = true;
        }
        if (begins) {
            left = mcus;
            memset(level, 0, sizeof level);
        }
        for (int c = 0; c < jpeg->components; c++) {
            const Component *component = &jpeg->component[c];
            const Table *dc = &jpeg->dc[component->dc];
            for (int block = 0; block < component->h * component->v; block++) {
                uint64_t bits = peek(jpeg->code, position);
                int size, length = look_up(dc, (uint32_t)(bits >> 48), &size);
                if (!length) return BROKEN_CODE;
                if (c) before = position; /* the first one's may lie in the interval before */
                position += (uint64_t)(length + size);
                old_level[c] += extend(bits << length, size);
                if (category(old_level[c]) > 11) return OUT_OF_RANGE; /* F.1.2.1: no baseline file has more */
                if (is_spliced && !block) {
                    *splice++ = (Splice){before, position, old_level[c] - level[c], begins && !c};
                    if (category(old_level[c] - level[c]) > 11) return OUT_OF_RANGE;
                }
                level[c] = old_level[c];
                if (!pass_ac(jpeg->code, &jpeg->ac[component->ac], jumps[component->ac], &position)) return BROKEN_CODE;
                if (position > limit) return TRUNCATED;
            }
        }
    }
    if (limit - position > 7) return BROKEN_CODE;
    *count = (size_t)(splice - splices);
    *end = position;
    return NULL;
}

/* Append a DC category behind all codes of a table, which stay as they are. libjpeg refuses a code of ones alone. */
static Reason append_category(Table *table, int symbol) {
    int longest = 16;
    while (longest > 1 && !table->counts[longest]) longest--;
    for (int length = longest; length <= 16; length++) {
        uint32_t code = 0;
        for (int l = 1; l <= length; l++) code = (code + table->counts[l]) << 1;
        if ((code >> 1) + 1 >= 1u << length || table->size > 255) continue;
        table->counts[length]++;
        table->symbols[table->size] = (uint8_t)symbol;
        return build_table(table);
    }
    return TABLE_FULL;
}

/* Write all segments before the scan again: DC tables with what was appended, and one DRI, before SOS. */
static Reason put_header(Writer *writer, const Jpeg *jpeg, size_t scan, uint32_t mcus, const bool *appended) {
    const uint8_t *data = jpeg->data;
    put_bytes(writer, data, 2);
    for (size_t at = 2; at < scan;) {
        if (data[at + 1] == 0xFF) {
            at++;
            continue;
        }
        size_t length = read16(data + at + 2), next = at + 2 + length;
        int marker = data[at + 1];
        if (marker == SOS) {
            const uint8_t interval[6] = {0xFF, DRI, 0, 4, (uint8_t)(mcus >> 8), (uint8_t)mcus};
            put_bytes(writer, interval, 6);
        }
        if (marker == DHT) { /* a table that is defined twice has its last meaning both times */
            uint8_t *head = writer->at;
            put_bytes(writer, data + at, 4);
            for (size_t entry = at + 4; entry < next;) {
                size_t size = 17;
                for (size_t i = 1; i <= 16; i++) size += data[entry + i];
                const Table *table = &jpeg->dc[data[entry] & 3];
                if (data[entry] >> 4 == 0 && appended[data[entry] & 3]) {
                    put_bytes(writer, data + entry, 1);
                    put_bytes(writer, table->counts + 1, 16);
                    put_bytes(writer, table->symbols, (size_t)table->size);
                } else put_bytes(writer, data + entry, size);
                entry += size;
            }
            size_t written = (size_t)(writer->at - head) - 2;
            if (written > 0xFFFF) return TABLE_FULL; /* of a segment with all that one can have, before categories came */
            if (!writer->full) head[2] = (uint8_t)(written >> 8), head[3] = (uint8_t)written;
        } else if (marker != DRI) put_bytes(writer, data + at, next - at);
        at = next;
    }
    return NULL;
}

static Reason read_single_scan(Jpeg *jpeg, size_t *scan) {
    int marker;
    *scan = 2;
    Reason reason = read_segments(jpeg, scan, &marker);
    if (reason) return reason;
    if (marker != SOS) return TRUNCATED;
    if (jpeg->frame == 0xC2) return PROGRESSIVE;
    if (jpeg->in_scan != jpeg->components) return SEVERAL_SCANS;
    if (jpeg->from != 0 || jpeg->to != 63 || jpeg->high_bit || jpeg->low_bit) return BROKEN_HEADER;
    for (int c = 0; c < jpeg->components; c++)
        if (!jpeg->dc[jpeg->component[c].dc].defined || !jpeg->ac[jpeg->component[c].ac].defined) return BROKEN_HEADER;
    uint64_t mcus = (uint64_t)jpeg->columns * jpeg->rows;
    if (mcus > 4 * (uint64_t)(jpeg->size - *scan)) return TRUNCATED; /* a block takes two bits at least */
    jpeg->code = malloc(jpeg->size - *scan + PADDING);
    if (!jpeg->code) return NO_MEMORY;
    reason = unstuff(jpeg, *scan, mcus);
    if (reason) return reason;
    return jpeg->data[jpeg->code_end + 1] == EOI ? NULL : SEVERAL_SCANS;
}

static Reason add_markers(Jpeg *jpeg, uint32_t mcus, Writer *writer) {
    size_t scan;
    Reason reason = read_single_scan(jpeg, &scan);
    if (reason) return reason;
    if (jpeg->columns % mcus && mcus % jpeg->columns) return WRONG_INTERVAL;
    uint64_t all = (uint64_t)jpeg->columns * jpeg->rows;
    if (all / mcus > MOST_SEGMENTS) return TOO_MANY_SEGMENTS;
    size_t segments = (size_t)((all + mcus - 1) / mcus), count = (segments + jpeg->intervals) * (size_t)jpeg->components;
    Jump(*jumps)[1 << AC_BITS] = malloc(sizeof(Jump[4][1 << AC_BITS]));
    Splice *splices = malloc(count * sizeof *splices);
    /* Bits that move by less than a byte may need a stuffed byte each; a segment costs its marker and its levels. */
    size_t room = 2 * jpeg->size + 32 * count + 4096;
    writer->start = writer->at = malloc(room);
    if (!jumps || !splices || !writer->start) {
        reason = NO_MEMORY;
        goto done;
    }
    writer->end = writer->start + room;
    for (int c = 0; c < jpeg->components; c++) {
        int table = jpeg->component[c].ac;
        bool is_built = false;
        for (int other = 0; other < c; other++) is_built |= jpeg->component[other].ac == table;
        if (!is_built) build_jumps(&jpeg->ac[table], jumps[table]);
    }
    uint64_t end;
    reason = walk(jpeg, mcus, (const Jump(*)[1 << AC_BITS])jumps, splices, &count, &end);
    if (reason) goto done;
    bool appended[4] = {false};
    for (size_t i = 0; i < count; i++) {
        int table = jpeg->component[i % (size_t)jpeg->components].dc, size = category(splices[i].difference), length;
        code_of(&jpeg->dc[table], size, &length);
        if (length) continue;
        reason = append_category(&jpeg->dc[table], size);
        if (reason) goto done;
        appended[table] = true;
    }
    reason = put_header(writer, jpeg, scan, mcus, appended);
    if (reason) goto done;
    for (size_t i = 0, segment = 0; i < count; i++) {
        const Splice *splice = &splices[i];
        if (splice->begins && i) put_marker(writer, RST0 + (int)(segment++ & 7));
        int size = category(splice->difference), length;
        uint32_t code = code_of(&jpeg->dc[jpeg->component[i % (size_t)jpeg->components].dc], size, &length);
        put_bits(writer, code, length);
        put_value(writer, splice->difference, size);
        copy_bits(writer, jpeg->code, splice->after, i + 1 < count ? splice[1].before : end);
    }
    put_marker(writer, EOI);
    put_bytes(writer, jpeg->data + jpeg->code_end + 2, jpeg->size - jpeg->code_end - 2); /* what follows the end marker */
    if (writer->full) reason = BROKEN_CODE;
done:
    free(jumps);
    free(splices);
    return reason;
}

/* ---- to_baseline ---------------------------------------------------------------------------------------------- */

/* Bits of the present scan; `run` is the number of blocks that an end-of-band code still covers (G.1.2.2). */
typedef struct {
    const uint8_t *code;
    uint64_t position;
    int32_t level[MOST_COMPONENTS];
    uint32_t run;
} Reader;

static inline int read_bits(Reader *reader, int count) {
    if (!count) return 0;
    int value = (int)(peek(reader->code, reader->position) >> (64 - count));
    reader->position += (uint64_t)count;
    return value;
}

/* Return the next symbol; -1 where there is none. */
static inline int read_symbol(Reader *reader, const Table *table) {
    int symbol, length = look_up(table, (uint32_t)(peek(reader->code, reader->position) >> 48), &symbol);
    reader->position += (uint64_t)length;
    return length ? symbol : -1;
}

static inline int32_t read_value(Reader *reader, int size) {
    int32_t value = extend(peek(reader->code, reader->position), size);
    reader->position += (uint64_t)size;
    return value;
}

static Reason read_dc(const Jpeg *jpeg, Reader *reader, int c, int16_t *block) {
    if (jpeg->high_bit) { /* G.1.2.1: the next bit of what has come before */
        if (read_bits(reader, 1)) block[0] |= (int16_t)(1 << jpeg->low_bit);
        return NULL;
    }
    int size = read_symbol(reader, &jpeg->dc[jpeg->component[c].dc]);
    if (size < 0) return BROKEN_CODE;
    reader->level[c] += read_value(reader, size);
    if (category(reader->level[c]) > 11) return OUT_OF_RANGE;
    int32_t value = reader->level[c] * (1 << jpeg->low_bit);
    if (category(value) > 11) return OUT_OF_RANGE;
    block[0] = (int16_t)value;
    return NULL;
}

/* Read AC coefficients that have not come before: of a band (G.1.2.2), or of a whole block (F.1.2.2). */
static Reason read_ac_first(const Jpeg *jpeg, Reader *reader, const Table *table, int16_t *block) {
    if (reader->run) {
        reader->run--;
        return NULL;
    }
    for (int k = jpeg->from ? jpeg->from : 1; k <= jpeg->to; k++) {
        int symbol = read_symbol(reader, table), run = symbol >> 4, size = symbol & 15;
        if (symbol < 0) return BROKEN_CODE;
        if (size) {
            k += run;
            if (k > jpeg->to) return BROKEN_CODE;
            int32_t value = read_value(reader, size) * (1 << jpeg->low_bit);
            if (category(value) > 10) return OUT_OF_RANGE;
            block[k] = (int16_t)value;
        } else if (run == 15) k += 15;
        else {
            if (run && jpeg->frame != 0xC2) return BROKEN_CODE;
            reader->run = (1u << run) + (uint32_t)read_bits(reader, run) - 1;
            return NULL;
        }
    }
    return NULL;
}

/* Read the next bit of each coefficient of a band that is not zero. Stop at the (zeros + 1)th that is; return its place. */
static int refine(const Jpeg *jpeg, Reader *reader, int16_t *block, int k, int zeros) {
    int bit = 1 << jpeg->low_bit;
    for (; k <= jpeg->to; k++) {
        if (!block[k]) {
            if (!zeros--) break;
        } else if (read_bits(reader, 1) && !(block[k] & bit)) block[k] = (int16_t)(block[k] + (block[k] > 0 ? bit : -bit));
    }
    return k;
}

static Reason read_ac_next(const Jpeg *jpeg, Reader *reader, const Table *table, int16_t *block) { /* G.1.2.3 */
    int k = jpeg->from;
    while (!reader->run && k <= jpeg->to) {
        int symbol = read_symbol(reader, table), run = symbol >> 4, size = symbol & 15, value = 0;
        if (symbol < 0 || size > 1) return BROKEN_CODE;
        if (size) value = read_bits(reader, 1) ? 1 << jpeg->low_bit : -(1 << jpeg->low_bit);
        else if (run < 15) {
            reader->run = (1u << run) + (uint32_t)read_bits(reader, run);
            break;
        }
        k = refine(jpeg, reader, block, k, run);
        if (size) {
            if (k > jpeg->to) return BROKEN_CODE;
            block[k] = (int16_t)value;
        }
        k++;
    }
    if (reader->run) {
        refine(jpeg, reader, block, k, 64);
        reader->run--;
    }
    return NULL;
}

/* Check that a scan brings bits that are due, and note them. A file that keeps to this decodes alike everywhere. */
static Reason check_scan(Jpeg *jpeg) {
    if (jpeg->frame != 0xC2) {
        if (jpeg->from != 0 || jpeg->to != 63 || jpeg->high_bit || jpeg->low_bit) return BROKEN_HEADER;
    } else {
        bool is_dc = !jpeg->from;
        if (jpeg->to > 63 || jpeg->from > jpeg->to || jpeg->low_bit > 13) return BROKEN_HEADER;
        if (is_dc ? jpeg->to : jpeg->in_scan > 1) return BROKEN_HEADER;
        if (jpeg->high_bit && jpeg->high_bit != jpeg->low_bit + 1) return BROKEN_HEADER;
    }
    for (int i = 0; i < jpeg->in_scan; i++) {
        Component *component = &jpeg->component[jpeg->scanned[i]];
        for (int k = jpeg->from; k <= jpeg->to; k++) {
            if (component->bits[k] != (jpeg->high_bit ? jpeg->high_bit : -1)) return SCANS_INCOMPLETE;
            component->bits[k] = (int8_t)jpeg->low_bit;
        }
        if (component->bits[0] < 0) return SCANS_INCOMPLETE; /* AC before DC */
        if (!jpeg->from && !jpeg->high_bit && !jpeg->dc[component->dc].defined) return BROKEN_HEADER;
        if (jpeg->to && !jpeg->ac[component->ac].defined) return BROKEN_HEADER;
    }
    return NULL;
}

static Reason read_block(const Jpeg *jpeg, Reader *reader, int c, size_t place) {
    const Component *component = &jpeg->component[c];
    int16_t *block = component->blocks + 64 * place;
    Reason reason = jpeg->from ? NULL : read_dc(jpeg, reader, c, block);
    if (reason || !jpeg->to) return reason;
    const Table *table = &jpeg->ac[component->ac];
    return jpeg->high_bit ? read_ac_next(jpeg, reader, table, block) : read_ac_first(jpeg, reader, table, block);
}

static Reason read_scan(Jpeg *jpeg, size_t at) {
    Reason reason = check_scan(jpeg);
    if (reason) return reason;
    const Component *alone = jpeg->in_scan == 1 ? &jpeg->component[jpeg->scanned[0]] : NULL;
    uint32_t columns = alone ? (uint32_t)alone->wide : jpeg->columns, rows = alone ? (uint32_t)alone->high : jpeg->rows;
    reason = unstuff(jpeg, at, (uint64_t)columns * rows);
    if (reason) return reason;
    Reader reader = {.code = jpeg->code};
    size_t interval = 0;
    uint64_t limit = jpeg->borders[1] * 8;
    uint32_t left = jpeg->interval ? jpeg->interval : UINT32_MAX;
    for (uint32_t y = 0; y < rows; y++) {
        for (uint32_t x = 0; x < columns; x++) {
            if (!left) {
                if (limit - reader.position > 7 || reader.run) return BROKEN_CODE;
                interval++;
                reader = (Reader){.code = jpeg->code, .position = jpeg->borders[interval] * 8};
                limit = jpeg->borders[interval + 1] * 8;
                left = jpeg->interval;
            }
            left--;
            for (int i = 0; i < jpeg->in_scan; i++) {
                const Component *component = &jpeg->component[jpeg->scanned[i]];
                uint32_t h = alone ? 1 : (uint32_t)component->h, v = alone ? 1 : (uint32_t)component->v;
                for (uint32_t block = 0; block < h * v; block++) {
                    size_t place = (size_t)(y * v + block / h) * (size_t)component->stride + x * h + block % h;
                    reason = read_block(jpeg, &reader, jpeg->scanned[i], place);
                    if (reason) return reason;
                    if (reader.position > limit) return TRUNCATED;
                }
            }
        }
    }
    return limit - reader.position > 7 || reader.run ? BROKEN_CODE : NULL;
}

/* Codes of one kind, DC or AC, for the first component or for the others. */
typedef struct {
    uint32_t frequency[257];
    Table table;
    uint16_t code[256];
    uint8_t length[256];
} Codes;

/* Make the codes that take the fewest bits of 16 at most, none of ones alone (K.2; Pillow's and OpenCV's are the same). */
static Reason optimize(Codes *codes) {
    uint32_t frequency[257];
    int size[257] = {0}, next[257], counts[258] = {0};
    memcpy(frequency, codes->frequency, sizeof frequency);
    frequency[256] = 1; /* keeps the code of ones free */
    for (int i = 0; i < 257; i++) next[i] = -1;
    for (;;) {
        int least = -1, second = -1;
        for (int i = 0; i < 257; i++) {
            if (!frequency[i]) continue;
            if (least < 0 || frequency[i] <= frequency[least]) second = least, least = i;
            else if (second < 0 || frequency[i] <= frequency[second]) second = i;
        }
        if (second < 0) break;
        frequency[least] += frequency[second];
        frequency[second] = 0;
        int last = least;
        for (size[last]++; next[last] >= 0; size[last]++) last = next[last];
        next[last] = second;
        for (last = second, size[last]++; next[last] >= 0; size[last]++) last = next[last];
    }
    for (int i = 0; i < 257; i++) counts[size[i]]++;
    for (int length = 257; length > 16; length--) {
        while (counts[length] > 0) { /* two codes become one shorter one and two of the next length that has any */
            int shorter = length - 2;
            while (!counts[shorter]) shorter--;
            counts[length] -= 2;
            counts[length - 1]++;
            counts[shorter + 1] += 2;
            counts[shorter]--;
        }
    }
    int longest = 16;
    while (longest > 1 && !counts[longest]) longest--;
    counts[longest]--; /* that of 256 */
    memset(&codes->table, 0, sizeof codes->table);
    for (int length = 1; length <= 16; length++) codes->table.counts[length] = (uint8_t)counts[length];
    int place = 0;
    for (int length = 1; length <= 257; length++)
        for (int symbol = 0; symbol < 256; symbol++)
            if (size[symbol] == length) codes->table.symbols[place++] = (uint8_t)symbol;
    Reason reason = build_table(&codes->table);
    uint32_t code = 0;
    place = 0;
    for (int length = 1; length <= 16; length++, code <<= 1)
        for (int i = 0; i < codes->table.counts[length]; i++, place++, code++) {
            codes->code[codes->table.symbols[place]] = (uint16_t)code;
            codes->length[codes->table.symbols[place]] = (uint8_t)length;
        }
    return reason;
}

/* Count a symbol; or write it, with its value. */
static inline void put_symbol(Writer *writer, Codes *codes, int symbol, int32_t value) {
    if (!writer) {
        codes->frequency[symbol]++;
        return;
    }
    put_bits(writer, codes->code[symbol], codes->length[symbol]);
    if (symbol & 15) put_value(writer, value, symbol & 15);
}

static Reason put_block(Writer *writer, Codes *dc, Codes *ac, const int16_t *block, int32_t *level) {
    int32_t difference = block[0] - *level;
    *level = block[0];
    if (category(difference) > 11) return OUT_OF_RANGE;
    put_symbol(writer, dc, category(difference), difference);
    int run = 0;
    for (int k = 1; k < 64; k++) {
        if (!block[k]) {
            run++;
            continue;
        }
        for (; run > 15; run -= 16) put_symbol(writer, ac, 0xF0, 0);
        if (category(block[k]) > 10) return OUT_OF_RANGE;
        put_symbol(writer, ac, run << 4 | category(block[k]), block[k]);
        run = 0;
    }
    if (run) put_symbol(writer, ac, 0, 0);
    return NULL;
}

/* Code all blocks in one scan; without a writer, count the symbols that it takes. */
static Reason put_scan(Writer *writer, Codes codes[2][2], const Jpeg *jpeg) {
    int32_t level[MOST_COMPONENTS] = {0};
    for (uint32_t y = 0; y < jpeg->rows; y++)
        for (uint32_t x = 0; x < jpeg->columns; x++)
            for (int c = 0; c < jpeg->components; c++) {
                const Component *component = &jpeg->component[c];
                uint32_t h = (uint32_t)component->h, v = (uint32_t)component->v;
                for (uint32_t block = 0; block < h * v; block++) {
                    size_t place = (size_t)(y * v + block / h) * (size_t)component->stride + x * h + block % h;
                    const int16_t *values = component->blocks + 64 * place;
                    Reason reason = put_block(writer, &codes[0][c > 0], &codes[1][c > 0], values, &level[c]);
                    if (reason) return reason;
                }
            }
    return NULL;
}

/* Write the segments that stay, those between scans, too: all but tables of codes, intervals and scans. */
static Reason put_kept(Writer *writer, const Jpeg *jpeg, size_t end) {
    const uint8_t *data = jpeg->data;
    bool scanned = false;
    put_bytes(writer, data, 2);
    for (size_t at = 2; at < end;) { /* the file was read once: all lengths are good */
        int marker = data[at + 1];
        if (data[at] != 0xFF || marker < 0xC0 || (marker >= RST0 && marker <= SOI) || marker == 0xFF) {
            at++; /* entropy code, or fill */
            continue;
        }
        size_t length = read16(data + at + 2) + 2;
        if (marker == SOS) scanned = true;
        else if (marker == DQT && scanned) return TABLES_BETWEEN;
        else if (marker == jpeg->frame) {
            put_bytes(writer, "\xFF\xC0", 2);
            put_bytes(writer, data + at + 2, length - 2);
        } else if (marker != DHT && marker != DRI) put_bytes(writer, data + at, length);
        at += length;
    }
    return NULL;
}

static void put_tables(Writer *writer, const Jpeg *jpeg, Codes codes[2][2], int kinds) {
    for (int i = 0; i < kinds; i++) {
        const Table *table = &codes[i & 1][i >> 1].table;
        size_t length = 19 + (size_t)table->size;
        const uint8_t head[5] = {0xFF, DHT, (uint8_t)(length >> 8), (uint8_t)length, (uint8_t)((i & 1) << 4 | i >> 1)};
        put_bytes(writer, head, 5);
        put_bytes(writer, table->counts + 1, 16);
        put_bytes(writer, table->symbols, (size_t)table->size);
    }
    const uint8_t head[5] = {0xFF, SOS, 0, (uint8_t)(6 + 2 * jpeg->components), (uint8_t)jpeg->components};
    put_bytes(writer, head, 5);
    for (int c = 0; c < jpeg->components; c++) {
        const uint8_t entry[2] = {(uint8_t)jpeg->component[c].id, c ? 0x11 : 0};
        put_bytes(writer, entry, 2);
    }
    put_bytes(writer, "\0\x3F\0", 3);
}

static Reason allocate_blocks(Jpeg *jpeg, uint64_t most_pixels) {
    uint64_t blocks = 0;
    if ((uint64_t)jpeg->height * (uint64_t)jpeg->width > most_pixels) return TOO_LARGE;
    for (int c = 0; c < jpeg->components; c++)
        blocks += (uint64_t)jpeg->component[c].stride * jpeg->rows * (uint64_t)jpeg->component[c].v;
    if (blocks > 8 * (uint64_t)jpeg->size) return TRUNCATED; /* each takes a bit at least, of its DC level */
    for (int c = 0; c < jpeg->components; c++) {
        Component *component = &jpeg->component[c];
        component->blocks = calloc((size_t)component->stride * jpeg->rows * (size_t)component->v, 64 * sizeof(int16_t));
        if (!component->blocks) return NO_MEMORY;
    }
    jpeg->code = malloc(jpeg->size + PADDING);
    return jpeg->code ? NULL : NO_MEMORY;
}

/* Read all scans from `*at` on; it is behind the end marker then. */
static Reason read_scans(Jpeg *jpeg, uint64_t most_pixels, size_t *at) {
    for (int scans = 0;; scans++) {
        int marker;
        Reason reason = read_segments(jpeg, at, &marker);
        if (!reason && marker == EOI) break;
        if (!reason && scans == MOST_SCANS) reason = SEVERAL_SCANS;
        if (!reason && !jpeg->code) reason = allocate_blocks(jpeg, most_pixels);
        if (!reason) reason = read_scan(jpeg, *at);
        if (reason) return reason;
        *at = jpeg->code_end;
    }
    if (!jpeg->code) return TRUNCATED;
    for (int c = 0; c < jpeg->components; c++)
        for (int k = 0; k < 64; k++)
            if (jpeg->component[c].bits[k]) return SCANS_INCOMPLETE;
    return NULL;
}

static Reason to_baseline(Jpeg *jpeg, uint64_t most_pixels, Writer *writer) {
    size_t at = 2;
    Reason reason = read_scans(jpeg, most_pixels, &at);
    if (reason) return reason;
    int kinds = jpeg->components > 1 ? 4 : 2; /* of codes: DC and AC of the first component, and of the others */
    Codes(*codes)[2] = calloc(2, sizeof *codes);
    if (!codes) return NO_MEMORY;
    reason = put_scan(NULL, codes, jpeg);
    uint64_t bits = 0;
    for (int i = 0; i < kinds && !reason; i++) {
        Codes *each = &codes[i & 1][i >> 1];
        reason = optimize(each);
        for (int symbol = 0; symbol < 256; symbol++)
            bits += (uint64_t)each->frequency[symbol] * (uint64_t)(each->length[symbol] + (symbol & 15));
    }
    if (!reason) {
        size_t room = jpeg->size + (size_t)(bits / 4) + 4096; /* a stuffed byte for each at the most */
        writer->start = writer->at = malloc(room);
        writer->end = writer->start + room;
        reason = writer->start ? put_kept(writer, jpeg, at - 2) : NO_MEMORY;
    }
    if (!reason) {
        put_tables(writer, jpeg, codes, kinds);
        reason = put_scan(writer, codes, jpeg);
        put_marker(writer, EOI);
        put_bytes(writer, jpeg->data + at, jpeg->size - at);
        if (writer->full) reason = OUT_OF_RANGE;
    }
    free(codes);
    return reason;
}

#include "_coefficients.h"

typedef enum { ADD_MARKERS, TO_BASELINE, PACK, TO_JPEG } Task;

/* Do it, with markers after each `number` MCUs, or with at most `number` pixels; `writer->start` is the caller's. */
static Reason rewrite(const uint8_t *data, size_t size, Task task, uint64_t number, Writer *writer) {
    if (task != TO_JPEG && (size < 4 || data[0] != 0xFF || data[1] != SOI)) return NOT_A_JPEG;
    Jpeg *jpeg = calloc(1, sizeof *jpeg);
    if (!jpeg) return NO_MEMORY;
    jpeg->data = data;
    jpeg->size = size;
    Reason reason = task == ADD_MARKERS   ? add_markers(jpeg, number <= UINT16_MAX && number ? (uint32_t)number : 1, writer) /* as DRI */
                    : task == TO_BASELINE ? to_baseline(jpeg, number, writer)
                    : task == PACK        ? pack(jpeg, number, writer)
                                          : to_jpeg(jpeg, writer);
    for (int c = 0; c < MOST_COMPONENTS; c++) free(jpeg->component[c].blocks);
    free(jpeg->code);
    free(jpeg->borders);
    free(jpeg);
    return reason;
}

/* ---- Module --------------------------------------------------------------------------------------------------- */

#ifndef WITHOUT_PYTHON
/* Release the buffers, and return the bytes, or raise MemoryError, or ValueError with the reason. */
static PyObject *finish_bytes(Reason reason, Writer *writer, Py_buffer *buffers, int count) {
    PyObject *result = NULL;
    if (reason == NO_MEMORY) PyErr_NoMemory();
    else if (reason) PyErr_SetString(PyExc_ValueError, reason);
    else result = PyBytes_FromStringAndSize((const char *)writer->start, writer->at - writer->start);
    free(writer->start);
    for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
    return result;
}

/* Rewrite the file of some arguments without the GIL. */
static PyObject *rewrite_file(PyObject *args, const char *format, Task task) {
    Py_buffer view;
    unsigned long long number = 0;
    if (!PyArg_ParseTuple(args, format, &view, &number)) return NULL;
    Writer writer = {0};
    Reason reason;
    Py_BEGIN_ALLOW_THREADS
    reason = rewrite(view.buf, (size_t)view.len, task, number, &writer);
    Py_END_ALLOW_THREADS
    return finish_bytes(reason, &writer, &view, 1);
}

static PyObject *py_add_markers(PyObject *module, PyObject *args) { (void)module; return rewrite_file(args, "y*K:add_markers", ADD_MARKERS); }
static PyObject *py_to_baseline(PyObject *module, PyObject *args) { (void)module; return rewrite_file(args, "y*K:to_baseline", TO_BASELINE); }
static PyObject *py_pack(PyObject *module, PyObject *args) { (void)module; return rewrite_file(args, "y*K:pack", PACK); }
static PyObject *py_to_jpeg(PyObject *module, PyObject *args) { (void)module; return rewrite_file(args, "y*:to_jpeg", TO_JPEG); }

/* Encode RGB pixels without the GIL, at the size and the tables of a head. */
static PyObject *py_encode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffers[2], *pixels = &buffers[0], *head = &buffers[1];
    if (!PyArg_ParseTuple(args, "y*y*:encode", pixels, head)) return NULL;
    Writer writer = {0};
    Reason reason = head->len == HEAD ? NULL : TRUNCATED;
    Py_BEGIN_ALLOW_THREADS
    if (!reason) reason = encode(head->buf, pixels->buf, (size_t)pixels->len, &writer);
    Py_END_ALLOW_THREADS
    return finish_bytes(reason, &writer, buffers, 2);
}

/* Release the buffers. Return None, or raise ValueError with the reason. */
static PyObject *finish(Reason reason, Py_buffer *buffers, int count) {
    for (int i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
    if (!reason) Py_RETURN_NONE;
    if (reason == NO_MEMORY) return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, reason);
    return NULL;
}

/* Unpack without the GIL into the array of a batch, if the head is the cache's. */
static PyObject *py_unpack(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffers[3], *data = &buffers[0], *head = &buffers[1], *out = &buffers[2];
    if (!PyArg_ParseTuple(args, "y*y*w*:unpack", data, head, out)) return NULL;
    Packed packed;
    Reason reason;
    Py_BEGIN_ALLOW_THREADS
    reason = open_packed(&packed, data->buf, (size_t)data->len);
    if (!reason && (head->len != HEAD || memcmp(data->buf, head->buf, HEAD))) reason = OTHER_HEAD;
    if (!reason && (size_t)out->len != unpacked_size(&packed)) reason = WRONG_ROOM;
    if (!reason) reason = CALL(unpack, &packed, out->buf);
    Py_END_ALLOW_THREADS
    return finish(reason, buffers, 3);
}

/* Decode a part of an image without the GIL. */
static PyObject *py_decode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer buffers[2], *data = &buffers[0], *out = &buffers[1];
    Part part;
    int repeat;
    if (!PyArg_ParseTuple(args, "y*w*(iiii)p:decode", data, out, &part.top, &part.left, &part.bottom, &part.right, &repeat)) return NULL;
    part.repeat = repeat;
    Packed packed;
    Reason reason;
    Py_BEGIN_ALLOW_THREADS
    reason = open_packed(&packed, data->buf, (size_t)data->len);
    if (!reason) reason = check_part(&packed, &part, (size_t)out->len);
    if (!reason) reason = CALL(decode, &packed, &part, out->buf);
    Py_END_ALLOW_THREADS
    return finish(reason, buffers, 2);
}

static PyMethodDef methods[] = {
    {"add_markers", py_add_markers, METH_VARARGS, "add_markers(data, mcus) -> bytes"},
    {"to_baseline", py_to_baseline, METH_VARARGS, "to_baseline(data, most_pixels) -> bytes"},
    {"encode", py_encode, METH_VARARGS, "encode(pixels, head) -> bytes"},
    {"pack", py_pack, METH_VARARGS, "pack(jpeg, most_pixels) -> bytes"},
    {"unpack", py_unpack, METH_VARARGS, "unpack(data, head, out)"},
    {"decode", py_decode, METH_VARARGS, "decode(data, out, (top, left, bottom, right), repeat)"},
    {"to_jpeg", py_to_jpeg, METH_VARARGS, "to_jpeg(data) -> bytes"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_restart", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__restart(void) {
    fill_orders();
    return PyModuleDef_Init(&definition);
}
#endif
