//! JSON text that is passed on as it came.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

/// One JSON value as text: valid, UTF-8, on one line. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

impl RawJson {
    /// Takes `bytes` if they hold exactly one JSON value.
    pub fn parse(bytes: Bytes) -> Result<Self, serde_json::Error> {
        let raw: &RawValue = serde_json::from_slice(&bytes)?;
        Ok(Self::part_of(&bytes, raw))
    }

    /// The value `raw`, which was read out of `whole`, without a copy.
    ///
    /// Line breaks can stand only between tokens there; they become spaces.
    pub fn part_of(whole: &Bytes, raw: &RawValue) -> Self {
        let part = whole.slice_ref(raw.get().as_bytes());
        if memchr::memchr2(b'\n', b'\r', &part).is_some() {
            let flat = part.iter().map(|&byte| {
                if matches!(byte, b'\n' | b'\r') {
                    b' '
                } else {
                    byte
                }
            });
            return Self(flat.collect());
        }
        Self(part)
    }

    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Reads the text as a `T`, which may borrow from it.
    pub fn read<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0)
    }
}

impl From<&serde_json::Value> for RawJson {
    fn from(value: &serde_json::Value) -> Self {
        Self(value.to_string().into())
    }
}

impl Serialize for RawJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_slice(&self.0).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl std::fmt::Debug for RawJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Text in pieces: an answer on its way out, whose payload is never copied together.
#[derive(Clone, Debug, Default)]
pub struct Rope(Vec<Bytes>);

impl Rope {
    pub fn push(&mut self, piece: impl Into<Bytes>) {
        self.0.push(piece.into());
    }

    pub fn append(&mut self, other: Rope) {
        self.0.extend(other.0);
    }

    pub fn pieces(&self) -> &[Bytes] {
        &self.0
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text in one piece.
    pub fn concat(&self) -> Vec<u8> {
        self.0.concat()
    }
}

impl From<RawJson> for Rope {
    fn from(json: RawJson) -> Self {
        Self(vec![json.0])
    }
}

impl From<&serde_json::Value> for Rope {
    fn from(value: &serde_json::Value) -> Self {
        RawJson::from(value).into()
    }
}
