//! Random numbers of cases: the same from the same seed on every machine.

use plan::uniform;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    seed: u64,
    drawn: u32,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { seed, drawn: 0 }
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f32 {
        self.drawn += 1;
        uniform(self.seed, self.drawn)
    }

    /// In `0..end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((f64::from(self.unit()) * end as f64) as usize).min(end - 1)
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Nearly normal, of deviation 1 and at most 3: the sum of three even numbers in [-1, 1).
    pub fn normal(&mut self) -> f32 {
        (0..3).map(|_| 2.0 * self.unit() - 1.0).sum()
    }

    /// Numbers of this deviation.
    pub fn normals(&mut self, count: usize, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| deviation * self.normal()).collect()
    }

    pub fn shuffle<T>(&mut self, of: &mut [T]) {
        for last in (1..of.len()).rev() {
            of.swap(last, self.below(last + 1));
        }
    }
}
