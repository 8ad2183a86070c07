use super::*;

/// A store in `directory`.
pub(crate) async fn open_in(directory: &Path) -> Store {
    Store::open(&settings_in(directory)).await.unwrap()
}

pub(crate) fn settings_in(directory: &Path) -> Settings {
    let mut settings = Settings::default();
    settings.store.data_dir = directory.to_owned();
    settings
}
