//! Generates text with a trained GPT, token by token. Each token is sampled from the model's probabilities.

use plimsoll::data::{DataError, Vocabulary};
use plimsoll::models::Gpt2;
use plimsoll::nn::Module;
use plimsoll::{DType, Result, Tensor};

use super::super::stop::Stop;
use super::super::task::Sampled;

/// The text to generate, and how.
#[derive(Clone)]
pub(super) struct Sampling {
    vocabulary: Vocabulary,
    prompt: Vec<i64>,
    length: usize,
    temperature: f64,
}

impl Sampling {
    /// Generates `length` tokens after a prompt. The default prompt is a line break, or the first token if the
    /// text has no line break.
    ///
    /// # Errors
    /// If the prompt has a character that is not in the vocabulary.
    pub(super) fn new(
        vocabulary: Vocabulary,
        prompt: Option<&str>,
        length: usize,
        temperature: f64,
    ) -> std::result::Result<Sampling, DataError> {
        let prompt = match prompt.filter(|prompt| !prompt.is_empty()) {
            Some(prompt) => vocabulary.encode(prompt)?,
            None => vocabulary.encode("\n").unwrap_or_else(|_| vec![0]),
        };
        Ok(Sampling { vocabulary, prompt, length, temperature })
    }

    /// The sample; `None` if none was requested. A signal ends the generation early.
    pub(super) fn write(&self, gpt: &Gpt2, stop: &Stop) -> Result<Option<Sampled>> {
        if self.length == 0 {
            return Ok(None);
        }
        let mut tokens = self.prompt.clone();
        for _ in 0..self.length {
            if stop.signal().is_some() {
                break;
            }
            tokens.push(self.next(gpt, &tokens)?);
        }
        let shown = |tokens: &[i64]| plain(&self.vocabulary.decode(tokens).unwrap_or_default());
        Ok(Some(Sampled { prompt: shown(&self.prompt), text: shown(&tokens) }))
    }

    fn next(&self, gpt: &Gpt2, tokens: &[i64]) -> Result<i64> {
        let window = &tokens[tokens.len().saturating_sub(gpt.config().n_positions)..];
        let device = gpt.parameters()[0].device().clone();
        let x = Tensor::from_slice(window, &[1, window.len()], &device)?;
        // A published model has more tokens than the text.
        let known = self.vocabulary.len();
        let logits = gpt.forward(&x)?.select(1, -1)?.narrow(1, 0, known)?.to_dtype(DType::F32)?;
        if self.temperature == 0.0 {
            return logits.argmax(1)?.item();
        }
        let weights = logits.mul_scalar(1.0 / self.temperature)?.softmax(1)?;
        weights.multinomial(1, true)?.item()
    }
}

/// The text without control characters.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_cannot_steer_the_terminal() {
        assert_eq!(plain("a\tb\nc\u{1b}[2Jd\r"), "a\tb\nc\u{fffd}[2Jd\u{fffd}");
    }

    #[test]
    fn a_prompt_has_only_characters_of_the_text() {
        let vocabulary = Vocabulary::of("hello\n");
        let tokens = |prompt| Sampling::new(vocabulary.clone(), prompt, 1, 1.0).map(|s| s.prompt);
        assert_eq!(tokens(Some("he")).unwrap().len(), 2);
        assert_eq!(tokens(Some("")).unwrap(), tokens(None).unwrap());
        let why = tokens(Some("hat")).unwrap_err().to_string();
        assert!(why.contains("character 1 is 'a'"), "{why}");
        assert_eq!(Sampling::new(Vocabulary::of("ab"), None, 1, 1.0).unwrap().prompt, [0]);
    }
}
