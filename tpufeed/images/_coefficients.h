/* Coefficients of an image in bytes that are read faster than Huffman codes: docs/format.md, "DCT images".
 *
 * Part of `_restart.c`, which reads and writes JPEGs. `pack` makes such bytes of a JPEG, `to_jpeg` makes a JPEG of them,
 * and `decode` makes the pixels of a window. None of them loses anything. `encode` makes such bytes of pixels. `unpack`
 * lays coefficients out as `Coefficients` in coefficients.py says, AC values as int8. `_blocks.h` has what works on vectors.
 *
 * The bytes may be anything. `open_packed` checks that the lengths of all groups add up to the bytes that are there. A
 * group is read with BEYOND bytes behind it, from a copy at the end of the image, before its own length is checked.
 */
enum { HEAD = 140, EXACT = 96, GREY = 0, HALVED = 1 /* 4:2:0 */, FULL = 2, WIDE = 3 /* 4:2:2 */ };
enum { GROUP = 4 /* blocks */, GROUP_HEAD = 9, MOST_NIBBLES = GROUP * 64, MOST_LARGE = GROUP * 63, BEYOND = 64 };
enum { MOST_GROUP = GROUP_HEAD + GROUP * 8 + 2 * MOST_LARGE + MOST_NIBBLES / 2 };
static const uint8_t MAGIC[4] = {0x89, 'D', 'C', 'T'};
static const uint8_t NATURAL[64] = { /* the row-major place of each zigzag place, figure A.6 */
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};
/* By bits of masks, quadrants of low and high frequencies have rows and columns in the order in which vectors join them. */
static const uint8_t LOW[4] = {0, 2, 1, 3}, HIGH[4] = {4, 6, 7, 5};
static const char NOT_PACKED[] = "not coefficients";
static const char OTHER_HEAD[] = "another size, sampling or tables than the cache's";
static const char BROKEN_GROUP[] = "a broken group of blocks";
static const char WRONG_SIZE[] = "sides that are no multiple of the MCU's";
static const char WRONG_SAMPLING[] = "neither 4:2:0, 4:2:2, 4:4:4 nor grey";
static const char WRONG_TABLES[] = "quantization tables that are missing or of 16 bits";
static const char WRONG_ROOM[] = "an array of another size";
static const char WRONG_WINDOW[] = "a window beyond the image";

typedef struct {
    int sampling, height, width, components, step;
    size_t wide[3], high[3], blocks; /* blocks of each component, those that only fill an MCU left out, and of all */
    const uint8_t *tables, *end;
    const uint8_t *lengths[3], *groups[3]; /* of each component */
} Packed;

static uint8_t BITS[256], SPREAD[256][8]; /* how many bits a mask has, and which of the next values each bit takes */
static uint8_t GATHER[256][8];            /* the bits that a mask has */
static uint8_t MASKED[64], ORDER[64];     /* the bit of each zigzag place, and the row-major place of each bit */
static uint8_t PIXELS[3][3][16];          /* which of 8 even and then 8 odd values of a colour RGB bytes of 16 pixels have */

static void fill_orders(void) {
    if (BITS[255]) return; /* at a second import other threads may read the tables */
    for (int mask = 0; mask < 256; mask++) {
        BITS[mask] = 0;
        memset(GATHER[mask], 0x80, 8);
        for (int i = 0; i < 8; i++) {
            if (mask >> i & 1) GATHER[mask][BITS[mask]] = (uint8_t)i;
            SPREAD[mask][i] = mask >> i & 1 ? BITS[mask]++ : 0x80;
        }
    }
    for (int i = 0; i < 64; i++) {
        ORDER[i] = (uint8_t)(8 * (i & 32 ? HIGH : LOW)[i >> 2 & 3] + (i & 16 ? HIGH : LOW)[i & 3]);
        for (int k = 0; k < 64; k++)
            if (NATURAL[k] == ORDER[i]) MASKED[k] = (uint8_t)i;
    }
    for (int colour = 0; colour < 3; colour++)
        for (int i = 0; i < 48; i++)
            PIXELS[colour][i / 16][i % 16] = (uint8_t)(i % 3 != colour ? 0x80 : i / 3 % 2 * 8 + i / 6);
}

static inline uint32_t read16_little(const uint8_t *at) { return at[0] | (uint32_t)at[1] << 8; }

/* Return the bytes of some groups that follow each other. */
static inline size_t sum_lengths(const uint8_t *lengths, size_t groups) {
    size_t sum = 0;
    for (size_t i = 0; i < groups; i++) sum += read16_little(lengths + 2 * i);
    return sum;
}

static inline size_t groups_in(size_t blocks) { return (blocks + GROUP - 1) / GROUP; }

/* Return in what steps int8 has values beyond EXACT: the smallest with which all of 8-bit samples fit. */
static int step_of(const uint8_t *tables) {
    int least = 255;
    for (int i = 1; i < 128; i++)
        if (i != 64 && tables[i] < least) least = tables[i];
    int over = 1023 - EXACT * least, step = (over + 31 * least - 1) / (31 * least);
    return over > 0 && step > 1 ? step : 1;
}

static inline int32_t code_of_value(int32_t value, int step) {
    int32_t size = value < 0 ? -value : value;
    if (size > EXACT) size = EXACT + (size - EXACT + step / 2) / step;
    if (size > 127) size = 127;
    return value < 0 ? -size : size;
}

/* Return by how many bits chroma has fewer columns, or rows, than luma. */
static inline int across(int sampling) { return sampling == HALVED || sampling == WIDE; }
static inline int down(int sampling) { return sampling == HALVED; }

/* Fill in all that follows from size and sampling. */
static void lay_out(Packed *packed, int sampling, int height, int width) {
    packed->sampling = sampling;
    packed->height = height;
    packed->width = width;
    packed->components = sampling == GREY ? 1 : 3;
    packed->blocks = 0;
    for (int c = 0; c < packed->components; c++) {
        int tall = c ? 8 << down(sampling) : 8, wide = c ? 8 << across(sampling) : 8;
        packed->high[c] = (size_t)((height + tall - 1) / tall);
        packed->wide[c] = (size_t)((width + wide - 1) / wide);
        packed->blocks += packed->high[c] * packed->wide[c];
    }
}

static Reason read_head(Packed *packed, const uint8_t *data) {
    int height = (int)read16_little(data + 8), width = (int)read16_little(data + 10);
    if (data[4] > WIDE || data[5] || data[6] || data[7] || !height || !width || memchr(data + 12, 0, 128)) return BROKEN_HEADER;
    lay_out(packed, data[4], height, width);
    packed->tables = data + 12;
    packed->step = step_of(packed->tables);
    return NULL;
}

/* Find all parts, and check that all are there. */
static Reason open_packed(Packed *packed, const uint8_t *data, size_t size) {
    if (size < 4 || memcmp(data, MAGIC, 4)) return NOT_PACKED;
    if (size < HEAD) return TRUNCATED;
    Reason reason = read_head(packed, data);
    if (reason) return reason;
    packed->end = data + size;
    size_t left = size - HEAD, groups[3];
    const uint8_t *at = data + HEAD;
    for (int c = 0; c < packed->components; c++) {
        groups[c] = packed->high[c] * groups_in(packed->wide[c]);
        if (left / 2 < groups[c]) return TRUNCATED;
        packed->lengths[c] = at;
        at += 2 * groups[c];
        left -= 2 * groups[c];
    }
    for (int c = 0; c < packed->components; c++) {
        size_t bytes = sum_lengths(packed->lengths[c], groups[c]);
        if (bytes > left) return TRUNCATED;
        packed->groups[c] = at;
        at += bytes;
        left -= bytes;
    }
    return left ? BROKEN_GROUP : NULL;
}

/* A place in a component: the group there, and where its length is. */
typedef struct {
    const uint8_t *length, *group, *end; /* of the image */
    uint8_t copy[MOST_GROUP + BEYOND];
} Cursor;

static inline void move_on(Cursor *cursor, size_t groups) {
    cursor->group += sum_lengths(cursor->length, groups);
    cursor->length += 2 * groups;
}

static inline void start_at(Cursor *cursor, const Packed *packed, int component, size_t row) {
    cursor->length = packed->lengths[component];
    cursor->group = packed->groups[component];
    cursor->end = packed->end;
    move_on(cursor, row * groups_in(packed->wide[component]));
}

/* Return the next group, behind which BEYOND bytes may be read, or NULL if it is too long. */
static inline const uint8_t *next_group(Cursor *cursor, size_t *length) {
    const uint8_t *group = cursor->group;
    *length = read16_little(cursor->length);
    if (*length > MOST_GROUP) return NULL;
    cursor->length += 2;
    cursor->group += *length;
    if ((size_t)(cursor->end - cursor->group) >= BEYOND) return group;
    memcpy(cursor->copy, group, *length);
    memset(cursor->copy + *length, 0, BEYOND);
    return cursor->copy;
}

static size_t unpacked_size(const Packed *packed) {
    size_t rows = 8 * (size_t)packed->width; /* a multiple of 8 rows */
    return (65 * packed->blocks + rows - 1) / rows * rows;
}

typedef struct {
    int top, left, bottom, right; /* left is even if chroma has fewer columns */
    bool repeat;                  /* colour samples, instead of interpolating between them */
} Part;

static Reason check_part(const Packed *packed, const Part *part, size_t room) {
    if (part->top < 0 || part->left < 0 || part->bottom > packed->height || part->right > packed->width) return WRONG_WINDOW;
    if (part->top >= part->bottom || part->left >= part->right || part->left & across(packed->sampling)) return WRONG_WINDOW;
    return room == 3 * (size_t)(part->bottom - part->top) * (size_t)(part->right - part->left) ? NULL : WRONG_ROOM;
}

/* Where the next group of an image that is made goes, and its length. */
typedef struct {
    uint8_t *length, *next;
} Groups;

/* Begin an image with room for its groups, and for what vectors write behind the last one. */
static Reason start_groups(Writer *writer, const uint8_t head[HEAD], Packed *packed, Groups *groups) {
    Reason reason = read_head(packed, head);
    if (reason) return reason;
    size_t count = 0;
    for (int c = 0; c < packed->components; c++) count += packed->high[c] * groups_in(packed->wide[c]);
    writer->start = malloc(HEAD + (2 + MOST_GROUP) * count + BEYOND); /* what is not written to takes no memory */
    if (!writer->start) return NO_MEMORY;
    memcpy(writer->start, head, HEAD);
    groups->length = writer->start + HEAD;
    groups->next = groups->length + 2 * count;
    return NULL;
}

static inline int lowest(uint64_t set) { return __builtin_ctzll(set); }

#include "_blocks.h"

/* ---- pack ------------------------------------------------------------------------------------------------------ */

/* Return a bit for each value that is not 0, that of index k at k: a branch for each value took most of the time. */
static inline uint64_t nonzero(const int16_t *values) {
    uint64_t set = 0;
    for (int k = 0; k < 64; k += 4) {
        uint64_t four = 0, low = 0x7FFF7FFF7FFF7FFF;
        for (int i = 0; i < 4; i++) four |= (uint64_t)(uint16_t)values[k + i] << 16 * i;
        four = (((four & low) + low) | four) & ~low; /* the top bit of each that is not 0 */
        set |= (four >> 15) * 0x0001000200040008 >> 48 << k; /* brings them together */
    }
    return set;
}

/* Read the tables into row-major order, and which one each component has. The file was read before: lengths are good. */
static Reason read_quantization(const Jpeg *jpeg, size_t end, uint8_t tables[128]) {
    const uint8_t *data = jpeg->data, *found[4] = {0}, *frame = NULL;
    bool scanned = false;
    for (size_t at = 2; at < end;) {
        int marker = data[at + 1];
        if (data[at] != 0xFF || marker < 0xC0 || (marker >= RST0 && marker <= SOI) || marker == 0xFF) {
            at++; /* entropy code, or fill */
            continue;
        }
        size_t length = read16(data + at + 2) + 2;
        if (marker == SOS) scanned = true;
        else if (marker == jpeg->frame) frame = data + at + 4;
        else if (marker == DQT) {
            if (scanned) return TABLES_BETWEEN;
            if ((length - 4) % 65) return WRONG_TABLES;
            for (const uint8_t *table = data + at + 4; table < data + at + length; table += 65) {
                if (*table > 3) return WRONG_TABLES;
                found[*table] = table + 1;
            }
        }
        at += length;
    }
    for (int c = 0; c < jpeg->components; c++) {
        int id = frame[8 + 3 * c];
        if (id > 3 || !found[id] || memchr(found[id], 0, 64)) return WRONG_TABLES;
        if (c == 2 && memcmp(found[id], found[frame[11]], 64)) return WRONG_TABLES;
        for (int k = 0; k < 64; k++) tables[(c > 0) * 64 + NATURAL[k]] = found[id][k];
    }
    if (jpeg->components == 1) memcpy(tables + 64, tables, 64);
    return NULL;
}

static int sampling_of(const Jpeg *jpeg) {
    const Component *part = jpeg->component;
    if (jpeg->components == 1) return GREY;
    if (jpeg->components != 3 || part[1].h != 1 || part[1].v != 1 || part[2].h != 1 || part[2].v != 1) return -1;
    if (part[0].h == 2) return part[0].v == 2 ? HALVED : part[0].v == 1 ? WIDE : -1;
    return part[0].h == 1 && part[0].v == 1 ? FULL : -1;
}

static Reason pack(Jpeg *jpeg, uint64_t most_pixels, Writer *writer) {
    size_t at = 2;
    uint8_t head[HEAD] = {0};
    Packed packed;
    Groups groups;
    Reason reason = read_scans(jpeg, most_pixels, &at);
    if (!reason) reason = read_quantization(jpeg, at - 2, head + 12);
    if (reason) return reason;
    int sampling = sampling_of(jpeg);
    if (sampling < 0) return WRONG_SAMPLING;
    memcpy(head, MAGIC, 4);
    head[4] = (uint8_t)sampling;
    for (int i = 0; i < 2; i++) {
        head[8 + i] = (uint8_t)(jpeg->height >> 8 * i);
        head[10 + i] = (uint8_t)(jpeg->width >> 8 * i);
    }
    reason = start_groups(writer, head, &packed, &groups);
    for (int c = 0; !reason && c < packed.components; c++) {
        const Component *component = &jpeg->component[c];
        for (size_t row = 0; row < packed.high[c]; row++) {
            for (size_t column = 0; !reason && column < packed.wide[c]; column += GROUP) {
                int16_t values[MOST_NIBBLES] = {0};
                for (size_t i = 0; i < GROUP && column + i < packed.wide[c]; i++) {
                    const int16_t *block = component->blocks + 64 * (row * (size_t)component->stride + column + i);
                    for (uint64_t set = nonzero(block); set; set &= set - 1) values[64 * i + MASKED[lowest(set)]] = block[lowest(set)];
                }
                if (!CALL(put_group, &groups, values)) reason = OUT_OF_RANGE;
            }
        }
    }
    if (!reason) writer->at = writer->end = groups.next;
    return reason;
}

/* ---- encode ---------------------------------------------------------------------------------------------------- */

static Reason encode(const uint8_t *head, const uint8_t *pixels, size_t size, Writer *writer) {
    Packed packed;
    Groups groups;
    Reason reason = start_groups(writer, head, &packed, &groups);
    if (reason) return reason;
    if (packed.sampling != HALVED || packed.height % 16 || packed.width % 16) return WRONG_SIZE;
    if (size != 3 * (size_t)packed.height * (size_t)packed.width) return WRONG_ROOM;
    reason = CALL(encode, &packed, pixels, &groups);
    if (!reason) writer->at = writer->end = groups.next;
    return reason;
}

/* ---- to_jpeg --------------------------------------------------------------------------------------------------- */

/* Fill the blocks of a component of a JPEG, in zigzag order. */
static Reason read_values(const Packed *packed, int c, Component *component) {
    Cursor cursor;
    start_at(&cursor, packed, c, 0);
    for (size_t row = 0; row < packed->high[c]; row++) {
        for (size_t column = 0; column < packed->wide[c]; column += GROUP) {
            int16_t values[MOST_NIBBLES];
            if (!read_group_base(&cursor, values)) return BROKEN_GROUP;
            for (size_t block = 0; block < GROUP && column + block < packed->wide[c]; block++) {
                int16_t *zigzag = component->blocks + 64 * (row * (size_t)component->stride + column + block);
                for (int k = 0; k < 64; k++) zigzag[k] = values[64 * block + paired(NATURAL[k])];
            }
        }
    }
    return NULL;
}

/* Fill in codes of one length: a file that is read once need not be small, and finding optimal ones takes long. */
static void fill_codes(Codes *codes, int length, int sizes) {
    codes->table.size = 0;
    for (int symbol = 0; symbol < 256; symbol++) {
        if ((symbol & 15) >= sizes || (length < 8 && symbol > 15)) continue;
        if (length == 8 && !(symbol & 15) && symbol && symbol != 0xF0) continue;
        codes->code[symbol] = (uint16_t)codes->table.size;
        codes->length[symbol] = (uint8_t)length;
        codes->table.symbols[codes->table.size++] = (uint8_t)symbol;
    }
    codes->table.counts[length] = (uint8_t)codes->table.size;
}

static void put_jfif(Writer *writer, const Jpeg *jpeg) {
    const uint8_t *tables = jpeg->data + 12;
    put_bytes(writer, "\xFF\xD8\xFF\xE0\0\x10JFIF\0\1\1\0\0\1\0\1\0", 20);
    for (uint8_t i = 0; i < (jpeg->components > 1 ? 2 : 1); i++) {
        uint8_t table[69] = {0xFF, DQT, 0, 67, i};
        for (int k = 0; k < 64; k++) table[5 + k] = tables[64 * i + NATURAL[k]];
        put_bytes(writer, table, sizeof table);
    }
    const uint8_t frame[10] = {0xFF, 0xC0, 0, (uint8_t)(8 + 3 * jpeg->components), 8, (uint8_t)(jpeg->height >> 8), (uint8_t)jpeg->height,
                               (uint8_t)(jpeg->width >> 8), (uint8_t)jpeg->width, (uint8_t)jpeg->components};
    put_bytes(writer, frame, sizeof frame);
    for (int c = 0; c < jpeg->components; c++) {
        const Component *part = &jpeg->component[c];
        const uint8_t entry[3] = {(uint8_t)part->id, (uint8_t)(part->h << 4 | part->v), c > 0};
        put_bytes(writer, entry, sizeof entry);
    }
}

static Reason to_jpeg(Jpeg *jpeg, Writer *writer) {
    Packed packed;
    Reason reason = open_packed(&packed, jpeg->data, jpeg->size);
    if (reason) return reason;
    size_t blocks = 0;
    int tall = 8 << down(packed.sampling), wide = 8 << across(packed.sampling);
    jpeg->height = packed.height;
    jpeg->width = packed.width;
    jpeg->components = packed.components;
    jpeg->columns = (uint32_t)((packed.width + wide - 1) / wide);
    jpeg->rows = (uint32_t)((packed.height + tall - 1) / tall);
    for (int c = 0; c < packed.components && !reason; c++) {
        Component *part = &jpeg->component[c];
        part->id = c + 1;
        part->h = c ? 1 : 1 << across(packed.sampling);
        part->v = c ? 1 : 1 << down(packed.sampling);
        part->stride = (int)jpeg->columns * part->h;
        size_t each = (size_t)part->stride * jpeg->rows * (size_t)part->v;
        blocks += each;
        part->blocks = calloc(each, 64 * sizeof(int16_t));
        reason = part->blocks ? read_values(&packed, c, part) : NO_MEMORY;
    }
    if (reason) return reason;
    Codes(*codes)[2] = calloc(2, sizeof *codes); /* DC's and AC's; of luma, and of chroma */
    size_t room = 1024 + 288 * blocks;           /* a block takes 15 bits and 63 times 18, and a stuffed byte for each byte */
    writer->start = writer->at = malloc(room);
    writer->end = writer->start + room;
    if (!codes || !writer->start) reason = NO_MEMORY;
    if (!reason) {
        int kinds = packed.components > 1 ? 4 : 2;
        for (int i = 0; i < kinds; i++) fill_codes(&codes[i & 1][i >> 1], i & 1 ? 8 : 4, i & 1 ? 11 : 12);
        put_jfif(writer, jpeg);
        put_tables(writer, jpeg, codes, kinds);
        reason = put_scan(writer, codes, jpeg);
        put_marker(writer, EOI);
    }
    free(codes);
    return reason;
}
