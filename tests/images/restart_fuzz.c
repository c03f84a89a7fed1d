/* Feed mutants of JPEGs and DCT images to all rewriters, and noise to `encode`: restart_fuzz MUTANTS SEED FILE ... Built by test_restart.py. */
#define WITHOUT_PYTHON
#include "../../tpufeed/images/_restart.c"
#include <stdio.h>

static uint64_t state;

static uint32_t draw(uint32_t below) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return (uint32_t)((state * 0x2545F4914F6CDD1Du) >> 33) % below;
}

/* Change some bytes, where the header is as often as where the code is; or cut, or repeat a part. Return the new size. */
static size_t mutate(uint8_t *data, size_t size, size_t header) {
    for (uint32_t left = 1 + draw(4); left; left--) {
        size_t at = draw((uint32_t)(draw(2) ? header : size)), from = draw((uint32_t)size), length = draw(16);
        if (at + length > size || from + length > size) continue;
        switch (draw(6)) {
            case 0: data[at] ^= (uint8_t)(1 << draw(8)); break;
            case 1: data[at] = (uint8_t)draw(256); break;
            case 2: data[at] = 0xFF; break;
            case 3: memmove(data + at, data + at + length, size - at - length), size -= length; break;
            case 4: memmove(data + at, data + from, length); break;
            default: if (!draw(8)) size = at + 4 < size ? at + 4 : size;
        }
    }
    return size;
}

static long taken;
static uint64_t sum; /* of all that was decoded: all variants of the code give the same */

static void add(Reason reason, const uint8_t *bytes, size_t size) {
    if (reason) return;
    taken++;
    for (size_t i = 0; i < size; i++) sum = sum * 31 + bytes[i];
}

/* Encode noise, with or without smooth parts, by random tables. */
static void encode_noise(void) {
    uint8_t head[HEAD] = {0x89, 'D', 'C', 'T', HALVED};
    size_t height = 16 * (1 + draw(4)), width = 16 * (1 + draw(6)), size = 3 * height * width;
    head[8] = (uint8_t)height, head[10] = (uint8_t)width;
    uint32_t most = draw(2) ? 255 : 2, levels = 1 + draw(256);
    for (int i = 12; i < HEAD; i++) head[i] = (uint8_t)(1 + draw(most));
    uint8_t *pixels = malloc(size);
    for (size_t i = 0; i < size; i++) pixels[i] = (uint8_t)(draw(levels) * 255 / levels);
    for (int variant = 0; variant < 2; variant++) {
        Writer writer = {0};
        Packed packed;
        Groups groups;
        Reason reason = start_groups(&writer, head, &packed, &groups);
        if (!reason) reason = variant ? CALL(encode, &packed, pixels, &groups) : encode_base(&packed, pixels, &groups);
        add(reason, writer.start, (size_t)(groups.next - writer.start));
        free(writer.start);
    }
    free(pixels);
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    fill_orders();
    long mutants = strtol(arguments[1], NULL, 10);
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    for (int number = 3; number < count; number++) {
        static uint8_t original[1 << 20];
        FILE *file = fopen(arguments[number], "rb");
        if (!file) return 2;
        size_t size = fread(original, 1, sizeof original, file), header = 2;
        fclose(file);
        bool packed = !memcmp(original, MAGIC, sizeof MAGIC);
        if (packed) header = HEAD;
        else while (header + 1 < size && (original[header] != 0xFF || original[header + 1] != SOS)) header++;
        for (long i = 0; i < mutants / (count - 3); i++) {
            if (i % 16 == 0) encode_noise();
            uint8_t *copy = malloc(size); /* of this size, so that a byte beyond it is found */
            memcpy(copy, original, size);
            size_t left = mutate(copy, size, header);
            uint8_t *mutant = malloc(left ? left : 1);
            memcpy(mutant, copy, left);
            for (Task task = packed ? TO_JPEG : ADD_MARKERS; task <= (packed ? TO_JPEG : PACK); task++) {
                Writer writer = {0};
                Reason reason = rewrite(mutant, left, task, task == ADD_MARKERS ? 1 + draw(12) : 1 << 24, &writer);
                taken += !reason;
                free(writer.start);
            }
            Packed found;
            if (packed && !open_packed(&found, mutant, left)) {
                Part part = {.repeat = draw(2)};
                part.top = (int)draw((uint32_t)found.height), part.left = (int)(draw((uint32_t)found.width) & ~1u);
                part.bottom = part.top + 1 + (int)draw(100), part.right = part.left + 1 + (int)draw(100);
                if (part.bottom > found.height) part.bottom = found.height;
                if (part.right > found.width) part.right = found.width;
                size_t room = 3 * (size_t)(part.bottom - part.top) * (size_t)(part.right - part.left);
                if (check_part(&found, &part, room)) return 3;
                uint8_t *out = malloc(unpacked_size(&found)), *pixels = malloc(room);
                add(unpack_base(&found, out), out, unpacked_size(&found));
                add(CALL(unpack, &found, out), out, unpacked_size(&found));
                add(decode_base(&found, &part, pixels), pixels, room);
                add(CALL(decode, &found, &part, pixels), pixels, room);
                free(out);
                free(pixels);
            }
            free(mutant);
            free(copy);
        }
    }
    printf("%ld mutants, %ld rewritten, sum %llx\n", mutants, taken, (unsigned long long)sum);
    return 0;
}
