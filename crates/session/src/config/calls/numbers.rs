//! Repeated items of a list, by numbers.

/// The numbers of an item, in order; one `None` for an item that is not repeated.
pub(super) fn numbers(ends: Option<[u32; 2]>) -> Vec<Option<u32>> {
    match ends {
        None => vec![None],
        Some([first, last]) if first <= last => (first..=last).map(Some).collect(),
        Some([first, last]) => (last..=first).rev().map(Some).collect(),
    }
}

/// A text with every `#`, `#+n` and `#-n` replaced by the number, or one so far from it. Without a number it
/// stays as it is.
pub(super) fn numbered(text: &str, number: Option<u32>) -> String {
    let Some(number) = number else { return text.to_owned() };
    let mut parts = text.split('#');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (distance, rest) = distance(part);
        whole += &(i64::from(number) + distance).to_string();
        whole += rest;
    }
    whole
}

/// The signed number that a text begins with, 0 if with none, and what follows.
fn distance(text: &str) -> (i64, &str) {
    let digits = match text.as_bytes().first() {
        Some(b'+' | b'-') => text[1..].bytes().take_while(u8::is_ascii_digit).count(),
        _ => 0,
    };
    match text[..1.min(text.len()) * usize::from(digits > 0) + digits].parse::<i32>() {
        Ok(distance) if digits > 0 => (i64::from(distance), &text[1 + digits..]),
        _ => (0, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_and_its_neighbours_take_the_place_of_their_signs() {
        for (text, expected) in [
            ("blocks.#.up", "blocks.7.up"),
            ("x.#-1", "x.6"),
            ("x.#+12.y.#", "x.19.y.7"),
            ("#-norm", "7-norm"),
            ("x#", "x7"),
            ("é#é", "é7é"),
            ("plain", "plain"),
            ("#-99999999999", "7-99999999999"),
        ] {
            assert_eq!(numbered(text, Some(7)), expected, "{text}");
        }
        assert_eq!(numbered("x.#", None), "x.#");
    }

    #[test]
    fn numbers_run_upwards_or_downwards_with_both_ends() {
        let run = |ends| numbers(Some(ends)).into_iter().flatten().collect::<Vec<_>>();
        assert_eq!((run([2, 4]), run([4, 2]), run([3, 3])), (vec![2, 3, 4], vec![4, 3, 2], vec![3]));
        assert_eq!(numbers(None), [None]);
    }
}
