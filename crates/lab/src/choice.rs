//! Which key an operation takes. Zipf's law is over the keys that there are: YCSB's, over 10^10 places that are hashed and taken modulo the number of keys, is
//! flatter.

use crate::Error;
use crate::keys::shuffled;
use crate::plan::Distribution;
use rand::Rng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Zipf};

/// Chooses places of a population that may grow.
pub(crate) struct Chooser {
    way: Way,
}

enum Way {
    /// Each place once, in an order that looks random: the next, and how many there are.
    Each {
        next: u64,
        count: u64,
    },
    /// Any place with equal chance.
    Uniform,
    Sequential {
        next: u64,
    },
    /// Few places very often, spread over all that there were at first: always the same ones.
    Zipfian(Zipf<f64>, u64),
    /// The places added last most often.
    Latest(Zipf<f64>),
}

impl Chooser {
    /// Of `count` places at first, for one of several parts of `operations`, which begins with number `first`.
    ///
    /// # Errors
    /// A law that is none.
    pub(crate) fn new(distribution: Distribution, count: u64, operations: u64, first: u64) -> Result<Self, Error> {
        let zipf = |exponent: f64| {
            let wrong = |error| Error::Usage(format!("Zipf's law with exponent {exponent} over {count} keys: {error}"));
            Zipf::new(count.max(1) as f64, exponent).map_err(wrong)
        };
        let way = match distribution {
            Distribution::Uniform if operations <= count => Way::Each { next: first, count },
            Distribution::Uniform | Distribution::Random => Way::Uniform,
            Distribution::Sequential => Way::Sequential { next: first },
            Distribution::Zipfian(exponent) => Way::Zipfian(zipf(exponent)?, count.max(1)),
            Distribution::Latest(exponent) => Way::Latest(zipf(exponent)?),
        };
        Ok(Self { way })
    }

    /// The next place, less than `count`, which is at least as many as there were before, and not 0.
    pub(crate) fn next(&mut self, count: u64, random: &mut SmallRng) -> u64 {
        match &mut self.way {
            Way::Each { next, count } => {
                *next += 1;
                shuffled((*next - 1) % *count, *count)
            }
            Way::Uniform => random.random_range(0..count),
            Way::Sequential { next } => {
                *next += 1;
                (*next - 1) % count
            }
            Way::Zipfian(zipf, first) => shuffled((zipf.sample(random) as u64 - 1) % *first, *first),
            Way::Latest(zipf) => count - 1 - (zipf.sample(random) as u64 - 1) % count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const COUNT: u64 = 1000;

    /// How often each of [`COUNT`] places comes in `operations` draws.
    fn draw(distribution: Distribution, operations: u64) -> Vec<u64> {
        let mut random = SmallRng::seed_from_u64(7);
        let mut chooser = Chooser::new(distribution, COUNT, operations, 0).unwrap();
        let mut counts = vec![0; COUNT as usize];
        (0..operations).for_each(|_| counts[chooser.next(COUNT, &mut random) as usize] += 1);
        counts
    }

    #[test]
    fn as_many_uniform_choices_as_keys_take_each_once() {
        assert!(draw(Distribution::Uniform, COUNT).iter().all(|count| *count == 1));
        assert!(draw(Distribution::Sequential, COUNT).iter().all(|count| *count == 1));
        assert_eq!(draw(Distribution::Uniform, 300).iter().filter(|count| **count == 1).count(), 300);
    }

    #[test]
    fn random_choices_come_again() {
        // Of n draws from n places, a share of 1/e is missed.
        let missed = draw(Distribution::Random, COUNT).iter().filter(|count| **count == 0).count();
        assert!((300..440).contains(&missed), "{missed}");
    }

    #[test]
    fn uniform_choices_are_even() {
        // 100 are expected of each: by the normal law less than one place in 10,000 is off by 40.
        let counts = draw(Distribution::Uniform, 100 * COUNT);
        assert!(counts.iter().all(|count| (50..150).contains(count)), "{counts:?}");
    }

    /// With exponent s, rank k has the share k^-s / H, where H is the sum of all.
    #[test]
    fn zipfian_choices_follow_the_law() {
        let operations = 400_000;
        for exponent in [0.99, 0.5] {
            let sum: f64 = (1..=COUNT).map(|rank| (rank as f64).powf(-exponent)).sum();
            let counts = draw(Distribution::Zipfian(exponent), operations);
            for rank in [1_u64, 2, 3, 10, 30] {
                let expected = operations as f64 * (rank as f64).powf(-exponent) / sum;
                let seen = counts[shuffled(rank - 1, COUNT) as usize] as f64;
                // Five standard deviations of a count.
                assert!((seen - expected).abs() < 5.0 * expected.sqrt(), "exponent {exponent}, rank {rank}: {seen} of {expected}");
            }
        }
    }

    #[test]
    fn frequent_keys_stay_frequent_when_others_are_added() {
        let (mut random, mut counts) = (SmallRng::seed_from_u64(7), vec![0_u32; 2 * COUNT as usize]);
        let mut chooser = Chooser::new(Distribution::Zipfian(0.99), COUNT, 1 << 20, 0).unwrap();
        (0..20 * COUNT).for_each(|step| counts[chooser.next(COUNT + step / 20, &mut random) as usize] += 1);
        let sum: f64 = (1..=COUNT).map(|rank| (rank as f64).powf(-0.99)).sum();
        let (seen, expected) = (f64::from(counts[shuffled(0, COUNT) as usize]), 20.0 * COUNT as f64 / sum);
        assert!((seen - expected).abs() < 5.0 * expected.sqrt(), "{seen} of {expected}");
    }

    #[test]
    fn the_latest_keys_are_the_most_frequent() {
        let counts = draw(Distribution::Latest(0.99), 100_000);
        let newest: u64 = counts[900..].iter().sum();
        assert!(counts[999] > counts[998] && counts[998] > counts[900] && newest > 60_000, "{newest}");
    }

    #[test]
    fn choices_reach_keys_that_are_added() {
        let mut random = SmallRng::seed_from_u64(7);
        for distribution in [Distribution::Latest(0.99), Distribution::Uniform] {
            let mut chooser = Chooser::new(distribution, 10, 1 << 20, 0).unwrap();
            let largest = (0..1000).map(|step| chooser.next(10 + step, &mut random)).max();
            assert!(largest.is_some_and(|largest| largest > 900), "{distribution:?}: {largest:?}");
        }
    }

    #[test]
    fn no_law_is_an_error() {
        assert!(matches!(Chooser::new(Distribution::Zipfian(-1.0), COUNT, 1, 0), Err(Error::Usage(_))));
        assert!(matches!(Chooser::new(Distribution::Latest(f64::NAN), COUNT, 1, 0), Err(Error::Usage(_))));
    }
}
