/* Coefficients of an image in bytes that are read faster than Huffman codes: docs/format.md, "DCT images".
 *
 * Part of `_restart.c`, which reads and writes JPEGs. `pack` makes such bytes of a JPEG, `to_jpeg` makes a JPEG of them,
 * and `unpack` lays them out as `Coefficients` in coefficients.py says. Neither loses anything but the last, whose AC
 * values are int8.
 *
 * The bytes may be anything. `open_packed` checks all lengths, so that each token is there, and no place in a block is
 * taken beyond 63, whatever the tokens say.
 */
enum { HEAD = 140, FIXED = HEAD + 4, LARGE = 6 /* bytes */, EXACT = 96, GREY = 0, HALVED = 1 /* 4:2:0 */, FULL = 2 };
static const uint8_t MAGIC[4] = {0x89, 'D', 'C', 'T'};
static const uint8_t NATURAL[64] = { /* the row-major place of each zigzag place, figure A.6 */
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};
static const char NOT_PACKED[] = "not coefficients";
static const char OTHER_HEAD[] = "another size, sampling or tables than the cache's";
static const char BROKEN_TOKENS[] = "broken tokens";
static const char WRONG_SIZE[] = "sides that are no multiple of the MCU's";
static const char WRONG_SAMPLING[] = "neither 4:2:0, 4:4:4 nor grey";
static const char WRONG_TABLES[] = "quantization tables that are missing or of 16 bits";
static const char WRONG_ROOM[] = "an array of another size";

typedef struct {
    int sampling, height, width, components, step;
    size_t wide[3], high[3], blocks; /* blocks of each component, and of all */
    const uint8_t *tables;
    const int8_t *high_parts, *low_parts;
    const uint8_t *counts, *large, *tokens;
    uint32_t larges;
} Packed;

static inline uint32_t read16_little(const uint8_t *at) { return at[0] | (uint32_t)at[1] << 8; }
static inline uint32_t read32_little(const uint8_t *at) { return read16_little(at) | read16_little(at + 2) << 16; }

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

static inline int32_t value_of_code(int32_t code, int step) {
    int32_t size = code < 0 ? -code : code;
    if (size > EXACT) size = EXACT + (size - EXACT) * step;
    return code < 0 ? -size : size;
}

/* Fill in all that follows from size and sampling. */
static void lay_out(Packed *packed, int sampling, int height, int width) {
    packed->sampling = sampling;
    packed->height = height;
    packed->width = width;
    packed->components = sampling == GREY ? 1 : 3;
    packed->blocks = 0;
    for (int c = 0; c < packed->components; c++) {
        int side = c && sampling == HALVED ? 16 : 8;
        packed->high[c] = (size_t)(height / side);
        packed->wide[c] = (size_t)(width / side);
        packed->blocks += packed->high[c] * packed->wide[c];
    }
}

/* Find all parts, and check that all are there. */
static Reason open_packed(Packed *packed, const uint8_t *data, size_t size) {
    if (size < 4 || memcmp(data, MAGIC, 4)) return NOT_PACKED;
    if (size < FIXED) return TRUNCATED;
    int height = (int)read16_little(data + 8), width = (int)read16_little(data + 10), side = data[4] == HALVED ? 16 : 8;
    if (data[4] > FULL || !height || !width || height % side || width % side) return BROKEN_HEADER;
    if (memchr(data + 12, 0, 128)) return BROKEN_HEADER;
    lay_out(packed, data[4], height, width);
    packed->tables = data + 12;
    packed->step = step_of(packed->tables);
    packed->larges = read32_little(data + HEAD);
    uint64_t fixed = FIXED + 3 * (uint64_t)packed->blocks, rest = LARGE * (uint64_t)packed->larges;
    if (size < fixed) return TRUNCATED;
    packed->high_parts = (const int8_t *)data + FIXED;
    packed->low_parts = packed->high_parts + packed->blocks;
    packed->counts = data + FIXED + 2 * packed->blocks;
    packed->tokens = packed->counts + packed->blocks;
    for (size_t block = 0; block < packed->blocks; block++) rest += packed->counts[block];
    packed->large = data + size - LARGE * (size_t)packed->larges; /* it is read only if all lengths are right */
    return size - fixed < rest ? TRUNCATED : size - fixed > rest ? BROKEN_TOKENS : NULL;
}

/* What a token says: by how many places to go on in the lower 8 bits, and above them what to add to the value there. */
static void fill_tokens(int16_t *meanings) {
    for (int token = 0; token < 256; token++) {
        int run = token >> 4, value = token & 15;
        meanings[token] = (int16_t)(value < 15 ? (value - 7) * 256 + run + 1 : 15 * (run < 8 ? run - 8 : run - 7) * 256);
    }
}

/* ---- unpack ---------------------------------------------------------------------------------------------------- */

static size_t unpacked_size(const Packed *packed) {
    size_t rows = 8 * (size_t)packed->width; /* a multiple of 8 rows */
    return (65 * packed->blocks + rows - 1) / rows * rows;
}

/* Write all of `unpacked_size` bytes. */
static Reason unpack(const Packed *packed, uint8_t *out) {
    size_t stride = (size_t)packed->width, places[64], planes[3] = {0}, block = 0;
    int16_t meanings[256];
    uint32_t beyond = 0;
    const uint8_t *token = packed->tokens;
    fill_tokens(meanings);
    for (int k = 0; k < 64; k++) places[k] = NATURAL[k] / 8 * stride + NATURAL[k] % 8;
    planes[1] = stride * (size_t)packed->height;
    planes[2] = planes[1] + (packed->sampling == HALVED ? stride / 2 : planes[1]);
    for (int c = 0; c < packed->components; c++) {
        for (size_t row = 0; row < packed->high[c]; row++) {
            uint8_t *at = out + planes[c] + row * 8 * stride;
            for (size_t line = 0; line < 8; line++) memset(at + line * stride, 0, 8 * packed->wide[c]); /* stays in L1 */
            for (size_t column = 0; column < packed->wide[c]; column++, block++, at += 8) {
                uint32_t k = 0;
                at[0] = (uint8_t)packed->low_parts[block];
                for (const uint8_t *end = token + packed->counts[block]; token < end; token++) {
                    int16_t meaning = meanings[*token];
                    k += (uint32_t)(meaning & 255);
                    at[places[k & 63]] += (uint8_t)(meaning >> 8);
                }
                beyond |= k;
            }
        }
    }
    memcpy(out + 64 * packed->blocks, packed->high_parts, packed->blocks);
    memset(out + 65 * packed->blocks, 0, unpacked_size(packed) - 65 * packed->blocks);
    return beyond > 63 ? BROKEN_TOKENS : NULL;
}

/* ---- pack ------------------------------------------------------------------------------------------------------ */

/* Return a bit for each AC value that is not 0, that of index k at k: a branch for each value took most of the time. */
static inline uint64_t nonzero(const int16_t *values) {
    uint64_t set = 0;
    for (int k = 0; k < 64; k += 4) {
        uint64_t four = 0, low = 0x7FFF7FFF7FFF7FFF;
        for (int i = 0; i < 4; i++) four |= (uint64_t)(uint16_t)values[k + i] << 16 * i;
        four = (((four & low) + low) | four) & ~low; /* the top bit of each that is not 0 */
        set |= (four >> 15) * 0x0001000200040008 >> 48 << k; /* brings them together */
    }
    return set & ~(uint64_t)1;
}

static inline int lowest(uint64_t set) {
#if defined(__GNUC__)
    return __builtin_ctzll(set);
#else
    int k = 0;
    while (!(set >> k & 1)) k++;
    return k;
#endif
}

/* Write the tokens of a block, 130 at most, and return how many; append the values that they do not hold exactly. */
static int put_tokens(uint8_t *token, uint8_t **large, size_t place, const int16_t *values, int step) {
    uint8_t *start = token;
    int last = 0;
    for (uint64_t set = nonzero(values); set; set &= set - 1) {
        int k = lowest(set), run = k - last - 1;
        for (; run > 15; run -= 16) *token++ = 15 << 4 | 7;
        if (values[k] >= -7 && values[k] <= 7) { /* nearly all: without a branch by the sign */
            *token++ = (uint8_t)(run << 4 | (values[k] + 7));
            last = k;
            continue;
        }
        int32_t code = code_of_value(values[k], step), fifteens = (code + (code < 0 ? -7 : 7)) / 15;
        *token++ = (uint8_t)(run << 4 | (code - 15 * fifteens + 7));
        if (fifteens) *token++ = (uint8_t)((fifteens < 0 ? fifteens + 8 : fifteens + 7) << 4 | 15);
        if (value_of_code(code, step) != values[k]) {
            for (int i = 0; i < 4; i++) *(*large)++ = (uint8_t)((place + (size_t)k) >> 8 * i);
            *(*large)++ = (uint8_t)values[k];
            *(*large)++ = (uint8_t)((uint16_t)values[k] >> 8);
        }
        last = k;
    }
    return (int)(token - start);
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

static Reason pack(Jpeg *jpeg, uint64_t most_pixels, Writer *writer) {
    size_t at = 2, place = 0;
    uint8_t head[FIXED] = {0};
    Packed packed = {0};
    Reason reason = read_scans(jpeg, most_pixels, &at);
    if (!reason) reason = read_quantization(jpeg, at - 2, head + 12);
    if (reason) return reason;
    const Component *part = jpeg->component;
    int sampling = jpeg->components == 1 ? GREY : part[0].h == 2 && part[0].v == 2 ? HALVED : FULL;
    if (jpeg->components != 1 && jpeg->components != 3) return WRONG_SAMPLING;
    for (int c = 0; c < jpeg->components; c++)
        if (part[c].h != (!c && sampling == HALVED ? 2 : 1) || part[c].v != part[c].h) return WRONG_SAMPLING;
    if (jpeg->height % jpeg->mcu_height || jpeg->width % jpeg->mcu_width) return WRONG_SIZE;
    lay_out(&packed, sampling, jpeg->height, jpeg->width);
    int step = step_of(head + 12);
    writer->start = malloc(FIXED + (3 + 130 + 63 * LARGE) * packed.blocks); /* what is not written to takes no memory */
    uint8_t *first = malloc(63 * LARGE * packed.blocks), *large = first;
    if (!writer->start || !first) reason = NO_MEMORY;
    uint8_t *high = writer->start + FIXED, *low = high + packed.blocks, *count = low + packed.blocks;
    uint8_t *token = count + packed.blocks;
    for (int c = 0; c < jpeg->components && !reason; c++) {
        for (size_t block = 0; block < packed.high[c] * packed.wide[c]; block++, place += 64) {
            const int16_t *values = part[c].blocks + 64 * block;
            int32_t high_part = (values[0] + 64 + 32768) / 128 - 256; /* rounded down */
            if (high_part < -128 || high_part > 127) reason = OUT_OF_RANGE;
            *high++ = (uint8_t)high_part;
            *low++ = (uint8_t)(values[0] - 128 * high_part);
            *count = (uint8_t)put_tokens(token, &large, place, values, step);
            token += *count++;
        }
    }
    if (!reason) {
        size_t larges = (size_t)(large - first) / LARGE;
        memcpy(head, MAGIC, 4);
        head[4] = (uint8_t)sampling;
        for (int i = 0; i < 2; i++) {
            head[8 + i] = (uint8_t)(packed.height >> 8 * i);
            head[10 + i] = (uint8_t)(packed.width >> 8 * i);
        }
        for (int i = 0; i < 4; i++) head[HEAD + i] = (uint8_t)(larges >> 8 * i);
        memcpy(writer->start, head, FIXED);
        memcpy(token, first, LARGE * larges);
        writer->at = writer->end = token + LARGE * larges;
    }
    free(first);
    return reason;
}

/* ---- to_jpeg --------------------------------------------------------------------------------------------------- */

/* Fill the blocks of a JPEG, in zigzag order. */
static Reason read_values(const Packed *packed, int16_t *values) {
    const uint8_t *token = packed->tokens;
    int16_t meanings[256];
    fill_tokens(meanings);
    for (size_t block = 0; block < packed->blocks; block++, values += 64) {
        uint8_t codes[64] = {0};
        uint32_t k = 0;
        for (const uint8_t *end = token + packed->counts[block]; token < end; token++) {
            k += (uint32_t)(meanings[*token] & 255);
            codes[k & 63] += (uint8_t)(meanings[*token] >> 8);
        }
        if (k > 63) return BROKEN_TOKENS;
        for (int i = 1; i < 64; i++) values[i] = (int16_t)value_of_code((int8_t)codes[i], packed->step);
        values[0] = (int16_t)(128 * packed->high_parts[block] + packed->low_parts[block]);
    }
    values -= 64 * packed->blocks;
    for (uint32_t i = 0; i < packed->larges; i++) {
        const uint8_t *large = packed->large + LARGE * (size_t)i;
        uint32_t place = read32_little(large);
        if (place >= 64 * packed->blocks || !(place & 63)) return BROKEN_TOKENS;
        values[place] = (int16_t)read16_little(large + 4);
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
    int16_t *values = malloc(packed.blocks * 64 * sizeof *values);
    if (!values) return NO_MEMORY;
    reason = read_values(&packed, values);
    int16_t *blocks = values;
    jpeg->height = packed.height;
    jpeg->width = packed.width;
    jpeg->components = packed.components;
    for (int c = 0; c < packed.components; c++) {
        Component *part = &jpeg->component[c];
        part->id = c + 1;
        part->h = part->v = packed.sampling == HALVED && !c ? 2 : 1;
        part->stride = (int)packed.wide[c];
        part->blocks = blocks;
        blocks += 64 * packed.high[c] * packed.wide[c];
        if (!c) jpeg->columns = (uint32_t)(packed.wide[0] / (size_t)part->h), jpeg->rows = (uint32_t)(packed.high[0] / (size_t)part->v);
    }
    Codes(*codes)[2] = calloc(2, sizeof *codes); /* DC's and AC's; of luma, and of chroma */
    size_t room = 1024 + 288 * packed.blocks;    /* a block takes 15 bits and 63 times 18, and a stuffed byte for each byte */
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
    for (int c = 0; c < packed.components; c++) jpeg->component[c].blocks = NULL;
    free(values);
    return reason;
}
