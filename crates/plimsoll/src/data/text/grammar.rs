//! English sentences from a small grammar, so that a language model can be trained without any file.
//!
//! A model has something to learn at each distance: the spelling of the words; the article that fits (`a`, `an`); a verb that
//! agrees with its subject, which may be some words earlier; a capital after a full stop; a pronoun that refers to the sentence
//! before.

use super::super::random::{Purpose, Stream};

/// A noun and its plural.
const NOUNS: [(&str, &str); 16] = [
    ("cat", "cats"),
    ("owl", "owls"),
    ("child", "children"),
    ("baker", "bakers"),
    ("fox", "foxes"),
    ("engineer", "engineers"),
    ("sailor", "sailors"),
    ("mouse", "mice"),
    ("elephant", "elephants"),
    ("gardener", "gardeners"),
    ("horse", "horses"),
    ("neighbour", "neighbours"),
    ("duck", "ducks"),
    ("actor", "actors"),
    ("wolf", "wolves"),
    ("teacher", "teachers"),
];

const ADJECTIVES: [&str; 14] = [
    "old", "small", "quiet", "angry", "brave", "tired", "young", "clever", "honest", "hungry", "tall",
    "lazy", "kind", "unusual",
];

/// Transitive verbs: singular and plural form.
const VERBS: [(&str, &str); 14] = [
    ("sees", "see"),
    ("follows", "follow"),
    ("calls", "call"),
    ("helps", "help"),
    ("watches", "watch"),
    ("finds", "find"),
    ("greets", "greet"),
    ("carries", "carry"),
    ("fears", "fear"),
    ("knows", "know"),
    ("teaches", "teach"),
    ("hears", "hear"),
    ("likes", "like"),
    ("paints", "paint"),
];

/// Intransitive verbs: singular and plural form.
const ACTS: [(&str, &str); 8] = [
    ("sleeps", "sleep"),
    ("sings", "sing"),
    ("waits", "wait"),
    ("runs away", "run away"),
    ("laughs", "laugh"),
    ("goes home", "go home"),
    ("reads", "read"),
    ("dances", "dance"),
];

const PLACES: [&str; 12] = [
    "in the garden",
    "near the river",
    "behind the house",
    "on the bridge",
    "under a tree",
    "at the market",
    "by the sea",
    "in the old town",
    "on the roof",
    "across the street",
    "in an empty room",
    "beside the road",
];

const TIMES: [&str; 8] = [
    "in the morning",
    "at night",
    "every day",
    "after the rain",
    "in winter",
    "before dinner",
    "at noon",
    "once a year",
];

#[derive(Clone, Copy)]
enum Number {
    One,
    Several,
}

/// Paragraphs of sentences, until there are at least this many characters.
pub(super) fn sentences(seed: u64, characters: usize) -> String {
    let mut random = Stream::new(seed, Purpose::Sentences, 0);
    let mut text = String::with_capacity(characters.saturating_add(128));
    while text.len() < characters {
        for _ in 0..3 + random.below(4) {
            sentence(&mut text, &mut random);
            text.push(' ');
            if text.len() >= characters {
                break;
            }
        }
        text.pop();
        text.push('\n');
    }
    text
}

/// One sentence, and sometimes a second one about the same subject.
fn sentence(text: &mut String, random: &mut Stream) {
    let number = number(random);
    let start = text.len();
    if random.below(4) == 0 {
        text.push_str(pick(&TIMES, random));
        text.push_str(", ");
    }
    somebody(text, number, random);
    predicate(text, number, random);
    text.push('.');
    capital(text, start);
    if random.below(3) == 0 {
        text.push_str(match number {
            Number::One => " Then it",
            Number::Several => " Then they",
        });
        predicate(text, number, random);
        text.push('.');
    }
}

fn somebody(text: &mut String, number: Number, random: &mut Stream) {
    let (one, several) = pick(&NOUNS, random);
    let mut name = String::new();
    if random.below(2) == 0 {
        name.push_str(pick(&ADJECTIVES, random));
        name.push(' ');
    }
    name.push_str(match number {
        Number::One => one,
        Number::Several => several,
    });
    let article = match (number, random.below(2)) {
        (_, 0) => "the",
        (Number::One, _) if name.starts_with(['a', 'e', 'i', 'o', 'u']) => "an",
        (Number::One, _) => "a",
        (Number::Several, _) => ["two", "three", "some", "many"][random.below(4)],
    };
    text.push_str(article);
    text.push(' ');
    text.push_str(&name);
    if random.below(5) == 0 {
        text.push(' ');
        text.push_str(pick(&PLACES, random));
    }
}

fn predicate(text: &mut String, number: Number, random: &mut Stream) {
    let of = |(one, several): (&'static str, &'static str)| match number {
        Number::One => one,
        Number::Several => several,
    };
    text.push(' ');
    if random.below(3) == 0 {
        text.push_str(of(pick(&ACTS, random)));
    } else {
        text.push_str(of(pick(&VERBS, random)));
        text.push(' ');
        let object = self::number(random);
        somebody(text, object, random);
    }
    if random.below(4) == 0 {
        text.push(' ');
        text.push_str(pick(&PLACES, random));
    }
}

fn number(random: &mut Stream) -> Number {
    if random.below(2) == 0 { Number::One } else { Number::Several }
}

fn pick<T: Copy>(words: &[T], random: &mut Stream) -> T {
    words[random.below(words.len())]
}

/// Makes the letter at `start` a capital; the grammar has only ASCII.
fn capital(text: &mut String, start: usize) {
    let first = text[start..].chars().next().map(|letter| letter.to_ascii_uppercase().to_string());
    text.replace_range(start..start + 1, &first.unwrap_or_default());
}
