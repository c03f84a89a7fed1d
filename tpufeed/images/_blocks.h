/* What works on vectors of 16 bytes: groups of blocks, transforms, colours and their sampling. Part of `_coefficients.h`.
 *
 * On x86 it includes itself twice: with the byte shuffles of SSSE3, which `CALL` takes if the processor has them, and
 * without. Elsewhere the compiler makes vectors of loops. Levels are those of libjpeg-turbo's accurate transform.
 */
#ifndef VARIANT
#if !defined(__GNUC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "takes the vectors of GCC or clang, and a little-endian machine"
#endif
#include <stddef.h>
#ifdef __SSE2__
#include <tmmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int8_t SignedBytes __attribute__((vector_size(16)));
typedef int16_t Shorts __attribute__((vector_size(16)));
typedef uint16_t UnsignedShorts __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t UnsignedInts __attribute__((vector_size(16))); /* for sums that damage makes overflow */
typedef uint64_t Longs __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){__VA_ARGS__})
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE Bytes load(const void *at) { Bytes all; memcpy(&all, at, 16); return all; }
INLINE void store(void *at, Bytes all) { memcpy(at, &all, 16); }
INLINE Bytes load_half(const void *at) { uint64_t half; memcpy(&half, at, 8); return (Bytes)(Longs){half, 0}; }
INLINE void store_half(void *at, Bytes all, int which) { uint64_t half = ((Longs)all)[which]; memcpy(at, &half, 8); }
INLINE Bytes low_bytes(Bytes a, Bytes b) { return SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
INLINE Bytes high_bytes(Bytes a, Bytes b) { return SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31); }
INLINE Shorts low_shorts(Shorts a, Shorts b) { return SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
INLINE Shorts high_shorts(Shorts a, Shorts b) { return SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
INLINE Shorts half_shorts(int half, Shorts a, Shorts b) { return half ? high_shorts(a, b) : low_shorts(a, b); }
INLINE Shorts eight_shorts(const uint8_t *at) { return (Shorts)low_bytes(load_half(at), (Bytes){0}); }
INLINE Shorts all_shorts(int value) { return (Shorts){0} + (int16_t)value; }
INLINE UnsignedInts all_ints(uint32_t value) { return (UnsignedInts){0} + value; }
/* Return a bit for each of eight bytes that is 255, of those that are 0 or 255. */
INLINE unsigned bits_of(Bytes all, int half) {
    return (unsigned)((((Longs)all)[half] & 0x8040201008040201) * 0x0101010101010101 >> 56);
}

#ifdef __SSE2__
/* Multiply, and add the products of each two neighbours. */
INLINE UnsignedInts multiply_pairs(Shorts a, Shorts b) { return (UnsignedInts)_mm_madd_epi16((__m128i)a, (__m128i)b); }
INLINE Shorts multiply_high(Shorts a, Shorts b) { return (Shorts)_mm_mulhi_epi16((__m128i)a, (__m128i)b); }
/* Join, each limited to the narrower range. */
INLINE Shorts narrow_ints(Ints a, Ints b) { return (Shorts)_mm_packs_epi32((__m128i)a, (__m128i)b); }
INLINE Bytes narrow_signed(Shorts a, Shorts b) { return (Bytes)_mm_packs_epi16((__m128i)a, (__m128i)b); }
INLINE Bytes narrow_unsigned(Shorts a, Shorts b) { return (Bytes)_mm_packus_epi16((__m128i)a, (__m128i)b); }
#else
INLINE int32_t limited(int32_t value, int32_t least, int32_t most) { return value < least ? least : value > most ? most : value; }
INLINE UnsignedInts multiply_pairs(Shorts a, Shorts b) {
    UnsignedInts sums;
    for (int i = 0; i < 4; i++) sums[i] = (uint32_t)(a[2 * i] * b[2 * i]) + (uint32_t)(a[2 * i + 1] * b[2 * i + 1]);
    return sums;
}
INLINE Shorts multiply_high(Shorts a, Shorts b) {
    Shorts products;
    for (int i = 0; i < 8; i++) products[i] = (int16_t)(a[i] * b[i] >> 16);
    return products;
}
INLINE Shorts narrow_ints(Ints a, Ints b) {
    Shorts joined;
    for (int i = 0; i < 8; i++) joined[i] = (int16_t)limited(i < 4 ? a[i] : b[i - 4], -32768, 32767);
    return joined;
}
INLINE Bytes narrow_signed(Shorts a, Shorts b) {
    SignedBytes joined;
    for (int i = 0; i < 16; i++) joined[i] = (int8_t)limited(i < 8 ? a[i] : b[i - 8], -128, 127);
    return (Bytes)joined;
}
INLINE Bytes narrow_unsigned(Shorts a, Shorts b) {
    Bytes joined;
    for (int i = 0; i < 16; i++) joined[i] = (uint8_t)limited(i < 8 ? a[i] : b[i - 8], 0, 255);
    return joined;
}
#endif

/* The transform takes two rows at once, pairs of values that it multiplies: rows 0 and 4, 2 and 6, 1 and 7, 3 and 5, each
 * with columns 0 4 2 6 1 7 3 5. Return the place of a row-major place in this order. */
static size_t paired(int natural) {
    static const uint8_t order[8] = {0, 4, 2, 6, 1, 7, 3, 5}; /* it undoes itself */
    size_t row = order[natural / 8], column = order[natural % 8];
    return row / 2 * 16 + column * 2 + row % 2;
}

/* ---- Transform: jidctint.c, whose constants of 13 bits are joined where a sum multiplies both values ------------------ */

#define PAIR(a, b) (Shorts){a, b, a, b, a, b, a, b}
INLINE void transform(Shorts p04, Shorts p26, Shorts p17, Shorts p35, int shift, Shorts out[4]) {
    UnsignedInts half = all_ints(1u << (shift - 1));
    UnsignedInts sum = multiply_pairs(p04, PAIR(8192, 8192)) + half;
    UnsignedInts difference = multiply_pairs(p04, PAIR(8192, -8192)) + half;
    UnsignedInts t2 = multiply_pairs(p26, PAIR(4433, -10704)), t3 = multiply_pairs(p26, PAIR(10703, 4433));
    UnsignedInts e0 = sum + t3, e3 = sum - t3, e1 = difference + t2, e2 = difference - t2;
    UnsignedInts d0 = multiply_pairs(p17, PAIR(2260, -11363)) + multiply_pairs(p35, PAIR(-6436, 9633));
    UnsignedInts d1 = multiply_pairs(p17, PAIR(6437, 9633)) + multiply_pairs(p35, PAIR(-11362, 2261));
    UnsignedInts d2 = multiply_pairs(p17, PAIR(9633, -6436)) + multiply_pairs(p35, PAIR(-2259, -11362));
    UnsignedInts d3 = multiply_pairs(p17, PAIR(11363, 2260)) + multiply_pairs(p35, PAIR(9633, 6437));
    out[0] = narrow_ints((Ints)(e0 + d3) >> shift, (Ints)(e1 + d2) >> shift);
    out[1] = narrow_ints((Ints)(e2 + d1) >> shift, (Ints)(e3 + d0) >> shift);
    out[2] = narrow_ints((Ints)(e3 - d0) >> shift, (Ints)(e2 - d1) >> shift);
    out[3] = narrow_ints((Ints)(e1 - d2) >> shift, (Ints)(e0 - d3) >> shift);
}

/* Turn four columns of four bytes. */
INLINE Bytes turn_bytes(Bytes all) {
    Bytes two = low_bytes(all, SHUFFLE(all, all, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    return low_bytes(two, SHUFFLE(two, two, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
}

/* Transform a block of values in the order of `paired`, as the steps in `table` are, to 8 rows of samples. */
INLINE void transform_block(const int16_t *values, const int16_t *table, uint8_t *out, size_t stride) {
    Shorts v[8], left[4], right[4], part[4];
    for (int i = 0; i < 8; i++) v[i] = (Shorts)((UnsignedShorts)load(values + 8 * i) * (UnsignedShorts)load(table + 8 * i));
    transform(v[0], v[2], v[4], v[6], 11, left); /* columns 0 4 2 6 */
    transform(v[1], v[3], v[5], v[7], 11, right);
    for (int i = 0; i < 2; i++, out += 4 * stride) {
        Ints l0 = (Ints)left[2 * i], l1 = (Ints)left[2 * i + 1], r0 = (Ints)right[2 * i], r1 = (Ints)right[2 * i + 1];
        transform((Shorts)SHUFFLE(l0, l1, 0, 2, 4, 6), (Shorts)SHUFFLE(l0, l1, 1, 3, 5, 7), (Shorts)SHUFFLE(r0, r1, 0, 2, 4, 6),
                  (Shorts)SHUFFLE(r0, r1, 1, 3, 5, 7), 18, part);
        Ints before = (Ints)(turn_bytes(narrow_signed(part[0], part[1])) + 128);
        Ints behind = (Ints)(turn_bytes(narrow_signed(part[2], part[3])) + 128);
        Bytes upper = (Bytes)SHUFFLE(before, behind, 0, 4, 1, 5), lower = (Bytes)SHUFFLE(before, behind, 2, 6, 3, 7);
        store_half(out, upper, 0);
        store_half(out + stride, upper, 1);
        store_half(out + 2 * stride, lower, 0);
        store_half(out + 3 * stride, lower, 1);
    }
}

/* ---- Forward: jfdctint.c, with the same constants ----------------------------------------------------------------------- */

INLINE void forward(Shorts v[8], int shift) {
    Shorts t0 = v[0] + v[7], t1 = v[1] + v[6], t2 = v[2] + v[5], t3 = v[3] + v[4];
    Shorts t7 = v[0] - v[7], t6 = v[1] - v[6], t5 = v[2] - v[5], t4 = v[3] - v[4];
    Shorts pairs[4][2] = {{t0 + t3, t1 + t2}, {t0 - t3, t1 - t2}, {t4, t7}, {t5, t6}};
    UnsignedInts sums[8][2];
    for (int half = 0; half < 2; half++) {
        Shorts p[4];
        for (int i = 0; i < 4; i++) p[i] = half_shorts(half, pairs[i][0], pairs[i][1]);
        sums[0][half] = multiply_pairs(p[0], PAIR(8192, 8192));
        sums[4][half] = multiply_pairs(p[0], PAIR(8192, -8192));
        sums[2][half] = multiply_pairs(p[1], PAIR(10703, 4433));
        sums[6][half] = multiply_pairs(p[1], PAIR(4433, -10704));
        sums[1][half] = multiply_pairs(p[2], PAIR(2260, 11363)) + multiply_pairs(p[3], PAIR(6437, 9633));
        sums[3][half] = multiply_pairs(p[2], PAIR(-6436, 9633)) + multiply_pairs(p[3], PAIR(-11362, -2259));
        sums[5][half] = multiply_pairs(p[2], PAIR(9633, 6437)) + multiply_pairs(p[3], PAIR(2261, -11362));
        sums[7][half] = multiply_pairs(p[2], PAIR(-11363, 2260)) + multiply_pairs(p[3], PAIR(9633, -6436));
    }
    UnsignedInts rounding = all_ints(1u << (shift - 1));
    for (int i = 0; i < 8; i++) v[i] = narrow_ints((Ints)(sums[i][0] + rounding) >> shift, (Ints)(sums[i][1] + rounding) >> shift);
}

/* Turn 8 rows into columns. */
INLINE void turn_shorts(Shorts v[8]) {
    for (int round = 0; round < 3; round++) {
        Shorts joined[8];
        for (int i = 0; i < 4; i++) joined[2 * i] = low_shorts(v[i], v[i + 4]), joined[2 * i + 1] = high_shorts(v[i], v[i + 4]);
        memcpy(v, joined, sizeof joined);
    }
}

/* Divide values by steps, and round halves away from zero. A quarter more makes up for the rounding of inverse steps. */
INLINE Shorts quantize(Shorts values, const float steps[8], const float inverse[8]) {
    Shorts signs = values >> 15, sizes = (values ^ signs) - signs;
    Ints quotients[2];
    for (int half = 0; half < 2; half++) {
        Floats step, by, size = __builtin_convertvector((Ints)half_shorts(half, sizes, (Shorts){0}), Floats);
        memcpy(&step, steps + 4 * half, 16);
        memcpy(&by, inverse + 4 * half, 16);
        quotients[half] = __builtin_convertvector((size + step * 0.5f + 0.25f) * by, Ints);
    }
    return (narrow_ints(quotients[0], quotients[1]) ^ signs) - signs;
}

/* Transform 8 rows of samples, quantize them by 8 times the table, and write them in the order of masks. */
INLINE void encode_block(const uint8_t *samples, size_t stride, const float steps[64], const float inverse[64], int16_t *values) {
    Shorts v[8];
    for (int i = 0; i < 8; i++) v[i] = eight_shorts(samples + (size_t)i * stride) - 128;
    turn_shorts(v);
    forward(v, 11);
    turn_shorts(v);
    forward(v, 15);
    for (int i = 0; i < 8; i++) {
        v[i] = quantize(v[i], steps + 8 * i, inverse + 8 * i);
        v[i] = SHUFFLE(v[i], v[i], 0, 2, 1, 3, 4, 6, 7, 5);
    }
    for (int i = 0; i < 4; i++, values += i == 2 ? 24 : 8) {
        Longs upper = (Longs)v[(i < 2 ? LOW : HIGH)[2 * i % 4]], lower = (Longs)v[(i < 2 ? LOW : HIGH)[2 * i % 4 + 1]];
        store(values, (Bytes)SHUFFLE(upper, lower, 0, 2));
        store(values + 16, (Bytes)SHUFFLE(upper, lower, 1, 3));
    }
}

/* ---- Colours -------------------------------------------------------------------------------------------------------- */

typedef struct { Shorts red, green, blue; } Colours; /* what eight pixels have more than grey of the same luma */

/* As jdcolext-sse2.asm computes them. */
INLINE Colours colours_of(Shorts cb, Shorts cr) {
    Shorts one = all_shorts(1), red = multiply_high(cr + cr, all_shorts(26345)), blue = multiply_high(cb + cb, all_shorts(-14942));
    Shorts weights = PAIR(-22554, 18734);
    UnsignedInts low = multiply_pairs(low_shorts(cb, cr), weights) + all_ints(32768);
    UnsignedInts high = multiply_pairs(high_shorts(cb, cr), weights) + all_ints(32768);
    Shorts green = narrow_ints((Ints)low >> 16, (Ints)high >> 16) - cr;
    return (Colours){((red + one) >> 1) + cr, green, ((blue + one) >> 1) + cb + cb};
}

typedef struct {
    const uint8_t *luma, *near[2], *far[2]; /* rows of samples from the first pixel on; of chroma the nearer and the next one */
    int16_t *sums[2];                       /* room, also for two before the first one, and 16 behind the last one */
    ptrdiff_t pixels, last;                 /* the chroma sample that is the image's last one */
    bool first;                             /* the first one is the image's */
} Row;

/* Weigh the rows of chroma as libjpeg's triangle filter does, for the pixels of `row` and a sample on each side. */
INLINE void weigh_rows(const Row *row) {
    ptrdiff_t samples = (row->pixels + 1) / 2;
    for (int c = 0; c < 2; c++) {
        int16_t *sums = row->sums[c];
        for (ptrdiff_t x = -1; x <= samples; x += 8)
            store(sums + x, (Bytes)(eight_shorts(row->near[c] + x) * 3 + eight_shorts(row->far[c] + x)));
        if (row->first) sums[-1] = sums[0];
        if (row->last <= samples) sums[row->last + 1] = sums[row->last];
    }
}

/* Return samples between those of `sums` and the next ones, before (-1) or behind them (1). */
INLINE Shorts between(const int16_t *sums, int side, int rounding) {
    UnsignedShorts sum = (UnsignedShorts)load(sums) * 3 + (UnsignedShorts)load(sums + side) + (uint16_t)rounding;
    return (Shorts)(sum >> 4) - 128;
}

#define VARIANT(name) name##_base
#include "_blocks.h"
#undef VARIANT
#if defined(__SSE2__) && !defined(__SSSE3__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("ssse3")
#define VARIANT(name) name##_ssse3
#include "_blocks.h"
#pragma GCC pop_options
#define CALL(name, ...) (__builtin_cpu_supports("ssse3") ? name##_ssse3(__VA_ARGS__) : name##_base(__VA_ARGS__))
#else
#define CALL(name, ...) name##_base(__VA_ARGS__)
#endif

#else /* the parts that need byte shuffles, or call such */

/* Return the bytes `at` names of `from`, and 0 for 0x80. */
INLINE Bytes VARIANT(pick)(Bytes from, Bytes at) {
#ifdef __SSSE3__
    return (Bytes)_mm_shuffle_epi8((__m128i)from, (__m128i)at);
#elif defined(__aarch64__)
    return vqtbl1q_u8(from, at);
#else
    Bytes picked;
    for (int i = 0; i < 16; i++) picked[i] = at[i] & 128 ? 0 : from[at[i] & 15];
    return picked;
#endif
}

/* Give each bit of a mask that is set the next of some values, in the lower half. */
INLINE Bytes VARIANT(spread)(unsigned mask, const uint8_t *values) {
#if defined(__SSSE3__) || defined(__aarch64__)
    return VARIANT(pick)(load_half(values), load_half(SPREAD[mask]));
#else
    uint8_t spread[8] = {0};
    for (; mask; mask &= mask - 1) spread[__builtin_ctz(mask)] = *values++;
    return load_half(spread);
#endif
}

/* Spread a group into four blocks of two rows each: 0 and 2, 1 and 3, 4 and 6, 7 and 5, with columns 0 4 2 6 1 7 3 5.
 *
 * Return its large values, or NULL if its length is not what its masks say. It may read BEYOND bytes behind it.
 */
INLINE const uint8_t *VARIANT(spread_group)(const uint8_t *group, size_t length, Bytes rows[GROUP][4]) {
    uint8_t masks[GROUP * 8 + 8], values[MOST_NIBBLES + 16];
    const uint8_t *at = group + GROUP_HEAD, *value = values;
    for (int block = 0; block < GROUP; block++) {
        unsigned kept = group[5 + block];
        store_half(masks + 8 * block, VARIANT(spread)(kept, at), 0);
        at += BITS[kept];
    }
    const uint8_t *nibbles = at + 2 * group[4];
    size_t before = (size_t)(nibbles - group), left = length - before;
    if (length < before || left > MOST_NIBBLES / 2) return NULL;
    for (size_t i = 0; i < left; i += 16) {
        Bytes both = load(nibbles + i), first = ((both & 15) ^ 8) - 8, second = ((both >> 4) ^ 8) - 8;
        store(values + 2 * i, low_bytes(first, second));
        store(values + 2 * i + 16, high_bytes(first, second));
    }
    for (int block = 0; block < GROUP; block++) {
        Longs quadrants[4];
        for (int i = 0; i < 4; i++) {
            unsigned upper = masks[8 * block + 2 * i], lower = masks[8 * block + 2 * i + 1];
            Longs rows01 = (Longs)VARIANT(spread)(upper, value);
            value += BITS[upper];
            quadrants[i] = SHUFFLE(rows01, (Longs)VARIANT(spread)(lower, value), 0, 2);
            value += BITS[lower];
        }
        rows[block][0] = low_bytes((Bytes)quadrants[0], (Bytes)quadrants[1]);
        rows[block][1] = high_bytes((Bytes)quadrants[0], (Bytes)quadrants[1]);
        rows[block][2] = low_bytes((Bytes)quadrants[2], (Bytes)quadrants[3]);
        rows[block][3] = high_bytes((Bytes)quadrants[2], (Bytes)quadrants[3]);
    }
    return (size_t)(value - values + 1) / 2 == left ? at : NULL;
}

/* Read the next group into values in the order of `paired`. */
INLINE bool VARIANT(read_group)(Cursor *cursor, int16_t values[MOST_NIBBLES]) {
    size_t length;
    Bytes rows[GROUP][4];
    const uint8_t *group = next_group(cursor, &length);
    const uint8_t *large = group ? VARIANT(spread_group)(group, length, rows) : NULL;
    if (!large) return false;
    for (int block = 0; block < GROUP; block++) {
        const Bytes *row = rows[block];
        Bytes pairs[4] = {low_bytes(row[0], row[2]), high_bytes(row[0], row[2]), /* rows 0 and 4, 2 and 6 */
                          low_bytes(row[1], row[3]), high_bytes(row[1], row[3])}; /* rows 1 and 7, 3 and 5 */
        for (int i = 0; i < 4; i++) {
            store(values + 64 * block + 16 * i, (Bytes)((Shorts)low_bytes(pairs[i], pairs[i]) >> 8));
            store(values + 64 * block + 16 * i + 8, (Bytes)((Shorts)high_bytes(pairs[i], pairs[i]) >> 8));
        }
        values[64 * block] = (int16_t)(values[64 * block] + 16 * (int8_t)group[block]);
    }
    for (int i = 0; i < group[4]; i++) {
        int16_t *value = values + (large[2 * i + 1] & 192) + paired(large[2 * i + 1] & 63);
        *value = (int16_t)(*value + 16 * (int8_t)large[2 * i]);
    }
    return true;
}

/* Add a group, whose values are in the order of masks. Return false if one is out of range. */
static bool VARIANT(put_group)(Groups *groups, const int16_t values[MOST_NIBBLES]) {
    uint8_t masks[GROUP * 8], nibbles[MOST_NIBBLES + 32], large[2 * MOST_LARGE], *next = nibbles;
    uint8_t *group = groups->next, *at = group + GROUP_HEAD;
    size_t larges = 0;
    memset(group, 0, GROUP_HEAD);
    for (size_t i = 0; i < MOST_NIBBLES; i += 16) {
        Shorts first = (Shorts)load(values + i), second = (Shorts)load(values + i + 8);
        Shorts low[2] = {((first + 8) & 15) - 8, ((second + 8) & 15) - 8};
        Bytes both = narrow_signed(low[0], low[1]), is_large = narrow_signed(first != low[0], second != low[1]);
        for (int half = 0; half < 2; half++) {
            unsigned mask = bits_of((Bytes)(both != 0), half);
            masks[i / 8 + (size_t)half] = (uint8_t)mask;
            store_half(next, VARIANT(pick)(both, load_half(GATHER[mask]) + (uint8_t)(8 * half)), 0);
            next += BITS[mask];
            for (uint64_t left = bits_of(is_large, half); left; left &= left - 1) {
                size_t place = i + 8 * (size_t)half + (size_t)lowest(left), block = place / 64;
                int value = values[place];
                if (value < -1024 || value > 1023 || (place % 64 && value == -1024)) return false;
                uint8_t high = (uint8_t)((value + 8) >> 4);
                if (place % 64 == 0) group[block] = high;
                else {
                    large[2 * larges] = high;
                    large[2 * larges++ + 1] = (uint8_t)(64 * block + ORDER[place % 64]);
                }
            }
        }
    }
    for (int block = 0; block < GROUP; block++) {
        Bytes all = load_half(masks + 8 * block);
        unsigned kept = bits_of((Bytes)(all != 0), 0);
        group[5 + block] = (uint8_t)kept;
        store_half(at, VARIANT(pick)(all, load_half(GATHER[kept])), 0);
        at += BITS[kept];
    }
    group[4] = (uint8_t)larges;
    memcpy(at, large, 2 * larges);
    at += 2 * larges;
    *next = 0;
    size_t bytes = (size_t)(next - nibbles + 1) / 2;
    for (size_t i = 0; i < bytes; i += 16) {
        Shorts first = (Shorts)load(nibbles + 2 * i), second = (Shorts)load(nibbles + 2 * i + 16);
        store(at + i, narrow_unsigned((first & 15) | (first >> 4 & 240), (second & 15) | (second >> 4 & 240)));
    }
    groups->next = at + bytes;
    for (int i = 0; i < 2; i++) *groups->length++ = (uint8_t)((size_t)(groups->next - group) >> 8 * i);
    return true;
}

/* ---- encode ---------------------------------------------------------------------------------------------------- */

/* Convert 8 pixels, as jccolext-sse2.asm does, and read 4 bytes behind them. */
INLINE void VARIANT(convert)(const uint8_t *pixels, Shorts converted[3]) {
    const Bytes red_green = {0, 128, 1, 128, 3, 128, 4, 128, 6, 128, 7, 128, 9, 128, 10, 128};
    const Bytes blue_green = {2, 128, 1, 128, 5, 128, 4, 128, 8, 128, 7, 128, 11, 128, 10, 128};
    UnsignedInts sums[3][2], middle = all_ints((128 << 16) + 32767);
    for (int half = 0; half < 2; half++) {
        Bytes four = load(pixels + 12 * half);
        Shorts rg = (Shorts)VARIANT(pick)(four, red_green), bg = (Shorts)VARIANT(pick)(four, blue_green);
        sums[0][half] = multiply_pairs(rg, PAIR(19595, 22086)) + multiply_pairs(bg, PAIR(7471, 16384)) + all_ints(32768);
        sums[1][half] = multiply_pairs(rg, PAIR(-11059, -21709)) + ((UnsignedInts)bg << 16 >> 1) + middle;
        sums[2][half] = multiply_pairs(bg, PAIR(-5329, -27439)) + ((UnsignedInts)rg << 16 >> 1) + middle;
    }
    for (int c = 0; c < 3; c++) converted[c] = narrow_ints((Ints)(sums[c][0] >> 16), (Ints)(sums[c][1] >> 16));
}

/* Convert two rows of pixels, which 4 bytes follow, to two rows of luma and one of each chroma. */
static void VARIANT(convert_rows)(const uint8_t *pixels, size_t width, size_t row, uint8_t *luma, uint8_t *cb, uint8_t *cr) {
    const UnsignedInts rounding = {1, 2, 1, 2}; /* as h2v2_downsample */
    for (size_t x = 0; x < width; x += 16) {
        Shorts halves[2][2][3];
        for (size_t i = 0; i < 4; i++) VARIANT(convert)(pixels + i / 2 * row + 3 * (x + i % 2 * 8), halves[i / 2][i % 2]);
        for (size_t i = 0; i < 2; i++) store(luma + i * width + x, narrow_unsigned(halves[i][0][0], halves[i][1][0]));
        for (int c = 1; c < 3; c++) {
            Ints sums[2];
            for (int i = 0; i < 2; i++)
                sums[i] = (Ints)((multiply_pairs(halves[0][i][c] + halves[1][i][c], PAIR(1, 1)) + rounding) >> 2);
            Shorts samples = narrow_ints(sums[0], sums[1]);
            store_half((c == 1 ? cb : cr) + x / 2, narrow_unsigned(samples, samples), 0);
        }
    }
}

/* Add the groups of an RGB image, 4:2:0 and with sides that are multiples of 16: the coefficients that libjpeg makes. */
static Reason VARIANT(encode)(const Packed *packed, const uint8_t *pixels, Groups *groups) {
    size_t width = (size_t)packed->width, height = (size_t)packed->height, luma = width * height, row = 3 * width;
    uint8_t *memory = malloc(luma / 2 * 3 + 2 * row + 16), *rows = memory + luma / 2 * 3;
    uint8_t *planes[3] = {memory, memory + luma, memory + luma / 4 * 5};
    if (!memory) return NO_MEMORY;
    for (size_t y = 0; y < height; y += 2) {
        memcpy(rows, pixels + y * row, 2 * row); /* behind them are bytes to read */
        VARIANT(convert_rows)(rows, width, row, planes[0] + y * width, planes[1] + y / 2 * (width / 2), planes[2] + y / 2 * (width / 2));
    }
    Reason reason = NULL;
    for (int c = 0; c < 3; c++) {
        size_t wide = packed->wide[c];
        float steps[64], inverse[64];
        for (int i = 0; i < 64; i++) steps[i] = 8.0f * packed->tables[(c > 0) * 64 + i], inverse[i] = 1 / steps[i];
        for (size_t block = 0; block < wide * packed->high[c]; block += wide) {
            for (size_t column = 0; column < wide && !reason; column += GROUP) {
                int16_t values[MOST_NIBBLES] = {0};
                for (size_t i = 0; i < GROUP && column + i < wide; i++)
                    encode_block(planes[c] + 64 * block + 8 * (column + i), 8 * wide, steps, inverse, values + 64 * i);
                if (!VARIANT(put_group)(groups, values)) reason = OUT_OF_RANGE;
            }
        }
    }
    free(memory);
    return reason;
}

/* ---- unpack ---------------------------------------------------------------------------------------------------- */

/* Unpack a row of blocks into int8 rows at `out`, and the high parts of DC at `*high`. */
static bool VARIANT(unpack_row)(Cursor *cursor, size_t blocks, int step, uint8_t *out, size_t stride, uint8_t **high) {
    static const uint8_t numbers[4][2] = {{0, 2}, {1, 3}, {4, 6}, {7, 5}};
    const Bytes sorted = {0, 4, 2, 6, 1, 7, 3, 5, 8, 12, 10, 14, 9, 15, 11, 13};
    for (size_t column = 0; column < blocks; column += GROUP, out += 8 * GROUP) {
        size_t length, count = blocks - column < GROUP ? blocks - column : GROUP;
        Bytes rows[GROUP][4];
        const uint8_t *group = next_group(cursor, &length);
        const uint8_t *large = group ? VARIANT(spread_group)(group, length, rows) : NULL;
        if (!large) return false;
        for (size_t block = 0; block < count; block++) {
            uint8_t *at = out + 8 * block;
            for (int i = 0; i < 4; i++) {
                Bytes both = VARIANT(pick)(rows[block][i], sorted);
                store_half(at + numbers[i][0] * stride, both, 0);
                store_half(at + numbers[i][1] * stride, both, 1);
            }
            int32_t value = (int8_t)at[0] + 16 * (int8_t)group[block] + 64;
            at[0] = (uint8_t)((value & 127) - 64);
            *(*high)++ = (uint8_t)(value >> 7);
        }
        for (int i = 0; i < group[4]; i++) {
            size_t place = large[2 * i + 1];
            if (place / 64 >= count || !(place % 64)) return false;
            uint8_t *at = out + place / 64 * 8 + place % 64 / 8 * stride + place % 8;
            *at = (uint8_t)code_of_value((int8_t)*at + 16 * (int8_t)large[2 * i], step);
        }
    }
    return true;
}

/* Write all of `unpacked_size` bytes. */
static Reason VARIANT(unpack)(const Packed *packed, uint8_t *out) {
    size_t stride = (size_t)packed->width, luma = stride * (size_t)packed->height;
    size_t planes[3] = {0, luma, packed->sampling == HALVED ? luma + stride / 2 : 2 * luma};
    uint8_t *high = out + 64 * packed->blocks;
    if (packed->sampling == WIDE) return OTHER_HEAD;
    if (packed->height % (8 << down(packed->sampling)) || packed->width % (8 << across(packed->sampling))) return WRONG_SIZE;
    for (int c = 0; c < packed->components; c++) {
        Cursor cursor;
        start_at(&cursor, packed, c, 0);
        for (size_t row = 0; row < packed->high[c]; row++)
            if (!VARIANT(unpack_row)(&cursor, packed->wide[c], packed->step, out + planes[c] + row * 8 * stride, stride, &high))
                return BROKEN_GROUP;
    }
    memset(high, 0, unpacked_size(packed) - 65 * packed->blocks);
    return NULL;
}

/* ---- decode ---------------------------------------------------------------------------------------------------- */

/* Write 16 pixels: their luma, and the colours of the even and of the odd ones. */
INLINE void VARIANT(put_pixels)(Bytes luma, const Colours *even, const Colours *odd, uint8_t *out) {
    Shorts evens = (Shorts)luma & 255, odds = (Shorts)((UnsignedShorts)luma >> 8);
    Bytes red = narrow_unsigned(evens + even->red, odds + odd->red);
    Bytes green = narrow_unsigned(evens + even->green, odds + odd->green);
    Bytes blue = narrow_unsigned(evens + even->blue, odds + odd->blue);
    for (int i = 0; i < 3; i++)
        store(out + 16 * i, VARIANT(pick)(red, load(PIXELS[0][i])) | VARIANT(pick)(green, load(PIXELS[1][i])) |
                                VARIANT(pick)(blue, load(PIXELS[2][i])));
}

/* Write a row of pixels, and at most 45 bytes behind it. */
static void VARIANT(colour_row)(const Row *row, int sampling, bool repeat, uint8_t *out) {
    if (across(sampling) && !repeat) weigh_rows(row);
    int before = sampling == WIDE ? 4 : 8, behind = sampling == WIDE ? 8 : 7; /* rounding */
    for (ptrdiff_t x = 0; x < row->pixels; x += 16) {
        Colours even = {{0}, {0}, {0}}, odd = even;
        if (sampling == FULL) {
            Shorts cb = (Shorts)load(row->near[0] + x), cr = (Shorts)load(row->near[1] + x);
            even = colours_of((cb & 255) - 128, (cr & 255) - 128);
            odd = colours_of((Shorts)((UnsignedShorts)cb >> 8) - 128, (Shorts)((UnsignedShorts)cr >> 8) - 128);
        } else if (sampling != GREY && repeat) {
            even = odd = colours_of(eight_shorts(row->near[0] + x / 2) - 128, eight_shorts(row->near[1] + x / 2) - 128);
        } else if (sampling != GREY) {
            const int16_t *cb = row->sums[0] + x / 2, *cr = row->sums[1] + x / 2;
            even = colours_of(between(cb, -1, before), between(cr, -1, before));
            odd = colours_of(between(cb, 1, behind), between(cr, 1, behind));
        }
        VARIANT(put_pixels)(load(row->luma + x), &even, &odd, out + 3 * x);
    }
}

/* Transform blocks `first` to `last` of a row, all of whose groups the cursor passes. */
static bool VARIANT(transform_row)(Cursor *cursor, size_t wide, size_t first, size_t last, const int16_t *table, uint8_t *out,
                                   size_t stride) {
    size_t groups = groups_in(wide), from = first / GROUP, to = groups_in(last);
    move_on(cursor, from);
    for (size_t group = from; group < to; group++) {
        int16_t values[MOST_NIBBLES] __attribute__((aligned(16)));
        if (!VARIANT(read_group)(cursor, values)) return false;
        for (size_t block = 0; block < GROUP; block++) {
            size_t column = group * GROUP + block;
            if (column >= first && column < last) transform_block(values + 64 * block, table, out + 8 * (column - first), stride);
        }
    }
    move_on(cursor, groups - to);
    return true;
}

/* Write the pixels of a part of the image, without gaps. */
static Reason VARIANT(decode)(const Packed *packed, const Part *part, uint8_t *out) {
    int sampling = packed->sampling, wider = across(sampling), taller = down(sampling);
    bool repeat = part->repeat || packed->width <= 4; /* as libjpeg: of at most two samples none is interpolated */
    int16_t tables[2][64];
    for (int i = 0; i < 128; i++) tables[i / 64][paired(i % 64)] = packed->tables[i];
    /* Samples of chroma that the part needs, and blocks of luma and chroma. */
    int width = (packed->width + wider) >> wider, height = (packed->height + taller) >> taller;
    int left = part->left >> wider, right = (part->right + wider) >> wider, start = left;
    int top = part->top >> taller, bottom = (part->bottom + taller) >> taller;
    if (wider && !repeat) left -= left > 0, right += right < width;
    if (taller && !repeat) top -= top > 0, bottom += bottom < height;
    size_t first[2] = {(size_t)part->left / 8, (size_t)left / 8};
    size_t last[2] = {(size_t)(part->right + 7) / 8, (size_t)(right + 7) / 8};
    size_t rows[2] = {8, (size_t)((bottom + 7) / 8 - top / 8) * 8}, stride[2], pixels = (size_t)(part->right - part->left);
    for (int c = 0; c < 2; c++) stride[c] = 8 * (last[c] - first[c]) + 64;
    /* In one piece: a strip of luma, the chroma, weighed rows of it, and the last row of pixels. */
    size_t luma = stride[0] * rows[0], chroma = packed->components > 1 ? stride[1] * rows[1] + 64 : 0, sums = stride[1] + 64;
    size_t size = 64 + luma + 2 * chroma + 2 * sums * sizeof(int16_t) + 3 * pixels + 64;
    uint8_t *memory = malloc(size), *strip = memory + 64, *planes[2] = {strip + luma, strip + luma + chroma};
    if (!memory) return NO_MEMORY;
    int16_t *weighed = (int16_t *)(strip + luma + 2 * chroma);
    uint8_t *last_row = (uint8_t *)(weighed + 2 * sums);
    Reason reason = NULL;
    Cursor cursor;
    for (int c = 1; c < packed->components && !reason; c++) {
        start_at(&cursor, packed, c, (size_t)top / 8);
        for (size_t row = 0; row < rows[1] && !reason; row += 8)
            if (!VARIANT(transform_row)(&cursor, packed->wide[c], first[1], last[1], tables[1], planes[c - 1] + row * stride[1], stride[1]))
                reason = BROKEN_GROUP;
    }
    Row row = {.sums = {weighed + 16, weighed + sums + 16}, .pixels = (ptrdiff_t)pixels};
    row.first = !start;
    row.last = width - 1 - start;
    start_at(&cursor, packed, 0, (size_t)part->top / 8);
    for (int y = part->top; y < part->bottom && !reason; y++, out += 3 * pixels) {
        if ((y == part->top || y % 8 == 0) &&
            !VARIANT(transform_row)(&cursor, packed->wide[0], first[0], last[0], tables[0], strip, stride[0]))
            reason = BROKEN_GROUP;
        int near = y >> taller, far = !taller ? near : y & 1 ? near + (near + 1 < height) : near - (near > 0);
        row.luma = strip + (size_t)(y % 8) * stride[0] + (size_t)part->left % 8;
        for (int c = 0; c < 2 && chroma; c++) {
            const uint8_t *plane = planes[c] + ((size_t)start - 8 * first[1]);
            row.near[c] = plane + (size_t)(near - top / 8 * 8) * stride[1];
            row.far[c] = repeat ? row.near[c] : plane + (size_t)(far - top / 8 * 8) * stride[1];
        }
        /* What is written behind a row is overwritten by the next one, if that is long enough. */
        bool fits = 3 * pixels * (size_t)(part->bottom - y - 1) >= 45;
        VARIANT(colour_row)(&row, sampling, repeat, fits ? out : last_row);
        if (!fits) memcpy(out, last_row, 3 * pixels);
    }
    free(memory);
    return reason;
}
#endif
