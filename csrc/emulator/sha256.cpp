#include "emulator/sha256.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace sm70emu {
namespace {

using Word = uint32_t;

Word rotate(Word x, int n) {
    return x >> n | x << (32 - n);
}

// First 32 bits of the fractional part of the n-th root (2 or 3) of each of the first primes, which is how the
// standard defines its constants. Long double has bits to spare.
template <size_t Count>
std::array<Word, Count> root_fractions(bool cube) {
    std::array<Word, Count> words{};
    int candidate = 1;
    for (auto& word : words) {
        bool prime = false;
        while (!prime) {
            ++candidate;
            prime = true;
            for (int d = 2; d * d <= candidate; ++d) prime &= candidate % d != 0;
        }
        const long double root =
            cube ? std::cbrt(static_cast<long double>(candidate)) : std::sqrt(static_cast<long double>(candidate));
        word = Word((root - std::floor(root)) * 4294967296.0L);
    }
    return words;
}

}  // namespace

std::string sha256_hex(const uint8_t* data, size_t size) {
    static const auto round_constants = root_fractions<64>(true);
    auto state = root_fractions<8>(false);

    std::vector<uint8_t> message(data, data + size);
    message.push_back(0x80);
    while (message.size() % 64 != 56) message.push_back(0);
    for (int i = 7; i >= 0; --i) message.push_back(static_cast<uint8_t>(static_cast<uint64_t>(size) * 8 >> (8 * i)));

    for (size_t at = 0; at < message.size(); at += 64) {
        Word w[64];
        for (int i = 0; i < 16; ++i) {
            const uint8_t* p = &message[at + 4 * static_cast<size_t>(i)];
            w[i] = Word(p[0]) << 24 | Word(p[1]) << 16 | Word(p[2]) << 8 | p[3];
        }
        for (int i = 16; i < 64; ++i) {
            const Word s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
            const Word s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (int i = 0; i < 64; ++i) {
            const Word t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                            round_constants[static_cast<size_t>(i)] + w[i];
            const Word t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        const Word add[8] = {a, b, c, d, e, f, g, h};
        for (size_t i = 0; i < 8; ++i) state[i] += add[i];
    }
    static const char digits[] = "0123456789abcdef";
    std::string text;
    for (const Word word : state) {
        for (int shift = 28; shift >= 0; shift -= 4) text += digits[word >> shift & 15];
    }
    return text;
}

}  // namespace sm70emu
