//! What a checkpoint of `train` contains besides tensors: the job ([`Facts`]) and its progress ([`Progress`]).

use plimsoll::data::LoaderState;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::train::job::Job;
use crate::train::task::Identity;

/// The description of its job that a checkpoint contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) task: String,
    pub(super) options: Map<String, Value>,
    pub(super) data: u64,
}

/// The progress of a run, with its measurements: everything in a checkpoint except tensors and random generators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) step: u64,
    pub(crate) epoch: u64,
    /// The position in the epoch; `None` at its beginning.
    pub(crate) loader: Option<LoaderState>,
    /// The sum of this epoch's losses as the bits of a float, because JSON might round it.
    pub(crate) loss_sum_bits: u64,
    /// The number of this epoch's samples that were trained on.
    pub(crate) samples: u64,
    /// Mean losses of earlier epochs.
    #[serde(deserialize_with = "not_finite_as_nan")]
    pub(crate) losses: Vec<f64>,
    /// Test results of earlier epochs.
    #[serde(deserialize_with = "not_finite_as_nan")]
    pub(crate) scores: Vec<f64>,
}

/// JSON has no NaN and no infinities: they are written as null, and read as NaN.
fn not_finite_as_nan<'de, D: Deserializer<'de>>(numbers: D) -> Result<Vec<f64>, D::Error> {
    let numbers: Vec<Option<f64>> = Deserialize::deserialize(numbers)?;
    Ok(numbers.into_iter().map(|number| number.unwrap_or(f64::NAN)).collect())
}

impl Facts {
    pub(super) fn of(job: &Job) -> Result<Facts, Failure> {
        let Identity { mut options, data } = job.task.identity()?;
        options.insert("--batch-size".to_owned(), job.batch_size.into());
        if let Some(reproducible) = job.reproducible {
            options.insert("--reproducible".to_owned(), reproducible.lanes.into());
        }
        if job.techniques.accumulate > 1 {
            options.insert("--accumulate".to_owned(), job.techniques.accumulate.into());
        }
        if job.techniques.adamw_8bit {
            options.insert("--optimizer".to_owned(), "adamw8bit".into());
        }
        options.insert("--seed".to_owned(), job.seed.into());
        Ok(Facts { task: job.task.name().to_owned(), options, data })
    }

    /// The differences between this job and the checkpoint's, a line each.
    pub(super) fn differences(&self, saved: &Facts) -> Vec<String> {
        if self.task != saved.task {
            return vec![format!("it belongs to `plimsoll train {}`", saved.task)];
        }
        let shown = |value: Option<&Value>| match value {
            None => "absent".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        };
        let mut found = Vec::new();
        let only_theirs = saved.options.keys().filter(|option| !self.options.contains_key(*option));
        for option in self.options.keys().chain(only_theirs) {
            let (ours, theirs) = (self.options.get(option), saved.options.get(option));
            if theirs != ours {
                found.push(format!(
                    "{option} is {} in the checkpoint and {} here",
                    shown(theirs),
                    shown(ours)
                ));
            }
        }
        if found.is_empty() && self.data != saved.data {
            found.push("the training data differ".to_owned());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(task: &str, layers: u64, data: u64) -> Facts {
        let options = [("--layers".to_owned(), layers.into())].into_iter().collect();
        Facts { task: task.to_owned(), options, data }
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_read_back() {
        let saved =
            Progress { losses: vec![0.5, f64::NAN], scores: vec![f64::INFINITY], ..Progress::default() };
        let text = serde_json::to_string(&saved).unwrap();
        let read: Progress = serde_json::from_str(&text).unwrap();
        assert!(read.losses[0] == 0.5 && read.losses[1].is_nan() && read.scores[0].is_nan(), "{text}");
    }

    #[test]
    fn another_job_is_known_by_its_task_its_options_or_its_data() {
        let ours = facts("gpt", 4, 7);
        assert_eq!(ours.differences(&ours), Vec::<String>::new());
        assert_eq!(ours.differences(&facts("mnist", 4, 7)), ["it belongs to `plimsoll train mnist`"]);
        assert_eq!(ours.differences(&facts("gpt", 2, 8)), ["--layers is 2 in the checkpoint and 4 here"]);
        assert_eq!(ours.differences(&facts("gpt", 4, 8)), ["the training data differ"]);
        let none = Facts { options: Map::new(), ..facts("gpt", 4, 7) };
        assert_eq!(ours.differences(&none), ["--layers is absent in the checkpoint and 4 here"]);
    }
}
