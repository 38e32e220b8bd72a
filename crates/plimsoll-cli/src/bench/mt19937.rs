//! C++'s `std::mt19937_64`, so that two benchmarks in two languages draw the same numbers.

pub(crate) struct Mt19937 {
    state: [u64; Self::WORDS],
    at: usize,
}

impl Mt19937 {
    const WORDS: usize = 312;

    pub(crate) fn new(seed: u64) -> Self {
        let mut state = [seed; Self::WORDS];
        for i in 1..Self::WORDS {
            let before = state[i - 1] ^ (state[i - 1] >> 62);
            state[i] = before.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i as u64);
        }
        Self { state, at: 0 }
    }

    /// The next number. One word of the state is renewed at each call, just before it is read.
    pub(crate) fn next(&mut self) -> u64 {
        let word = |offset| self.state[(self.at + offset) % Self::WORDS];
        let joined = (word(0) & !0x7fff_ffff) | (word(1) & 0x7fff_ffff);
        let twist = if joined & 1 == 1 { 0xb502_6f5a_a966_19e9 } else { 0 };
        let renewed = word(156) ^ (joined >> 1) ^ twist;
        self.state[self.at] = renewed;
        self.at = (self.at + 1) % Self::WORDS;
        let x = renewed ^ ((renewed >> 29) & 0x5555_5555_5555_5555);
        let x = x ^ ((x << 17) & 0x71d6_7fff_eda6_0000);
        let x = x ^ ((x << 37) & 0xfff7_eee0_0000_0000);
        x ^ (x >> 43)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ten_thousandth_number_is_the_one_the_standard_names() {
        // C++ [rand.predef]: a default-constructed mt19937_64 (seed 5489) gives this at its 10,000th call.
        let mut random = Mt19937::new(5489);
        let last = (0..10_000).map(|_| random.next()).last();
        assert_eq!(last, Some(9_981_545_732_273_789_042));
    }
}
