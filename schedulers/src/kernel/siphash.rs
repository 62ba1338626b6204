//! SipHash-1-3 of 32 bits: `hsiphash` of a 64-bit kernel.

/// A key of 128 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(u64, u64);

impl Key {
    /// Returns a key whose halves both equal `half`.
    pub(super) const fn twice(half: u64) -> Self {
        Self(half, half)
    }
}

/// Returns the lower 32 bits of the SipHash-1-3 of the little-endian bytes of `message`.
///
/// Kernel: `hsiphash_1u32`, `lib/siphash.c`. Defined by Aumasson and Bernstein, "SipHash: a fast
/// short-input PRF" (2012); 1-3 means one round per block and three at the end.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower 32 bits are the hash"
)]
pub(super) fn siphash13(Key(k0, k1): Key, message: u32) -> u32 {
    // The only block: the message, and its length in the highest byte.
    let block = 4 << 56 | u64::from(message);
    // The constants of SipHash's definition: the ASCII letters "somepseudorandomlygeneratedbytes".
    let mut state = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573 ^ block,
    ];
    round(&mut state);
    state[0] ^= block;
    state[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut state);
    }
    let [a, b, c, d] = state;
    (a ^ b ^ c ^ d) as u32
}

fn round(state: &mut [u64; 4]) {
    let [a, b, c, d] = state;
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_vector_matches() {
        let key = Key(0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(siphash13(key, 0x0302_0100), 0x88d3_8328);
    }

    #[test]
    fn hashes_with_the_mh_keys_match() {
        let vectors = [
            (0, 0x1d5a_77c2, 0xf882_433f),
            (1, 0x16ec_66b2, 0x8210_aad1),
            (0x0a00_0001, 0x0308_0ce4, 0x48f9_d0c1),
            (0x0a00_0051, 0x439c_0cbe, 0x97b3_dc47),
            (u32::MAX, 0x22c5_d719, 0xf75a_0f5d),
        ];
        for (message, offset, skip) in vectors {
            assert_eq!(siphash13(Key::twice(2_654_435_761), message), offset);
            assert_eq!(siphash13(Key::twice(2_654_446_892), message), skip);
        }
    }
}
