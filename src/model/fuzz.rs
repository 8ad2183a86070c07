//! What the fuzz targets share: the engine's bytes, read as choices (docs/fuzzing.md).

/// Bytes taken one choice at a time. Past their end every choice is the first one.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub fn pick<'t, T: ?Sized>(&mut self, from: &[&'t T]) -> &'t T {
        from[self.below(from.len())]
    }

    /// At most `most`, none once the bytes have run out.
    pub fn many<T>(&mut self, most: usize, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(most + 1);
        (0..count)
            .map_while(|_| (!self.is_empty()).then(|| item(self)))
            .collect()
    }

    /// Words and, now and then, a byte of any kind.
    pub fn text(&mut self, words: &[&str], most: usize) -> Vec<u8> {
        let word = |choices: &mut Self| match choices.byte() {
            byte @ 0..=223 => words[usize::from(byte) % words.len()].as_bytes().to_vec(),
            _ => vec![choices.byte()],
        };
        self.many(most, word).concat()
    }

    /// A JSON object of these members and values, some of it nested, now and then damaged.
    pub fn near_json(&mut self, names: &[&str], values: &[&str]) -> Vec<u8> {
        let mut text = self.object(names, values, 0).into_bytes();
        if self.below(4) == 1 {
            for _ in 0..=self.below(3) {
                let at = (self.below(256) << 8 | self.below(256)) % (text.len() + 1);
                match self.below(3) {
                    0 => text.truncate(at),
                    1 => text.insert(at, self.byte()),
                    _ => text.extend_from_within(at..),
                }
            }
        }
        text
    }

    fn object(&mut self, names: &[&str], values: &[&str], depth: usize) -> String {
        let member = |choices: &mut Self| {
            let (name, blank) = (choices.pick(names), choices.pick(&["", "", " ", "\r"]));
            let value = match choices.below(8) {
                0 if depth < 3 => choices.object(names, values, depth + 1),
                1 if depth < 3 => format!("[{}]", choices.object(names, values, depth + 1)),
                _ => choices.pick(values).to_owned(),
            };
            format!("\"{name}\"{blank}:{value}{blank}")
        };
        format!("{{{}}}", self.many(6, member).join(","))
    }

    pub fn sizes(&mut self) -> Vec<usize> {
        let mut sizes = self.many(8, |choices| 1 + choices.below(20));
        sizes.push(1 + self.below(64));
        sizes
    }
}

/// `input` in pieces of these sizes, over and over.
pub fn cut<'a>(input: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = input;
    let mut pieces = Vec::new();
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// The members of a JSON object, in order, those that stand twice too: the slow way to read one.
pub struct Members<'a>(pub Vec<(String, &'a serde_json::value::RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> serde::de::Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(
                self,
                mut map: M,
            ) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        input.deserialize_map(All)
    }
}

impl<'a> Members<'a> {
    /// The values of all members with one of these names.
    pub fn named(&self, names: &[&str]) -> Vec<&'a str> {
        let named = self.0.iter().filter(|(name, _)| names.contains(&&**name));
        named.map(|(_, value)| value.get()).collect()
    }
}
