//! The tables as a decision beside them sees them: a procedure of a client's app, or the fabric, which decides on
//! packets of Weir's own switches by the same code.

use std::sync::Arc;
use weir_store::columns::Columns;
use weir_store::{Aborted, Call, TableName, View};

/// Tables of one app. They are named by their word.
pub trait Beside {
    /// A value.
    ///
    /// # Errors
    /// What the tables refuse; so everywhere here.
    fn get(&mut self, table: &str, key: &[u8]) -> Result<Option<Arc<[u8]>>, Aborted>;

    /// The value in `to` that the whole value in `from` is the key of (row B5).
    ///
    /// # Errors
    /// See [`Beside::get`].
    fn follow(&mut self, from: &str, to: &str, key: &[u8]) -> Result<Option<Arc<[u8]>>, Aborted>;

    /// Writes a value.
    ///
    /// # Errors
    /// See [`Beside::get`].
    fn put(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), Aborted>;

    /// Writes a column of a value (row B7).
    ///
    /// # Errors
    /// See [`Beside::get`].
    fn set_column(&mut self, table: &str, key: &[u8], name: &str, bytes: &[u8]) -> Result<(), Aborted>;

    /// Adds one to a counter, and gives what it was.
    ///
    /// # Errors
    /// See [`Beside::get`].
    fn increment(&mut self, table: &str, key: &[u8]) -> Result<i64, Aborted>;

    /// Takes a value out, if it is there.
    ///
    /// # Errors
    /// See [`Beside::get`].
    fn remove(&mut self, table: &str, key: &[u8]) -> Result<(), Aborted>;
}

impl Beside for Call<'_, '_> {
    fn get(&mut self, table: &str, key: &[u8]) -> Result<Option<Arc<[u8]>>, Aborted> {
        Ok(Call::get(self, table, key)?.map(|entry| entry.value))
    }

    fn follow(&mut self, from: &str, _: &str, key: &[u8]) -> Result<Option<Arc<[u8]>>, Aborted> {
        Ok(Call::follow(self, from, key, "")?.map(|entry| entry.value))
    }

    fn put(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), Aborted> {
        Call::put(self, table, key, value)
    }

    fn set_column(&mut self, table: &str, key: &[u8], name: &str, bytes: &[u8]) -> Result<(), Aborted> {
        Call::set_column(self, table, key, name, bytes)
    }

    fn increment(&mut self, table: &str, key: &[u8]) -> Result<i64, Aborted> {
        Call::increment(self, table, key, "", 1)
    }

    fn remove(&mut self, table: &str, key: &[u8]) -> Result<(), Aborted> {
        Call::remove(self, table, key).map(|_| ())
    }
}

/// Tables of the fabric, of which each network has a part of its own: two tenants may have the same addresses.
pub(crate) struct Part<'w, 's> {
    view: &'w mut View<'s>,
    /// The tables by their word.
    tables: &'static [(&'static str, TableName)],
    /// What the keys of the part begin with.
    prefix: Vec<u8>,
}

impl<'w, 's> Part<'w, 's> {
    pub(crate) fn new(
        view: &'w mut View<'s>,
        tables: &'static [(&'static str, TableName)],
        prefix: Vec<u8>,
    ) -> Part<'w, 's> {
        Part { view, tables, prefix }
    }

    fn name(&self, table: &str) -> Result<TableName, Aborted> {
        let found = self.tables.iter().find(|(word, _)| *word == table);
        found.map(|(_, name)| *name).ok_or_else(|| Aborted::new(format!("the fabric has no table '{table}'")))
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix[..], key].concat()
    }
}

impl Beside for Part<'_, '_> {
    fn get(&mut self, table: &str, key: &[u8]) -> Result<Option<Arc<[u8]>>, Aborted> {
        Ok(self.view.get(self.name(table)?, &self.key(key)))
    }

    fn follow(&mut self, from: &str, to: &str, key: &[u8]) -> Result<Option<Arc<[u8]>>, Aborted> {
        match self.get(from, key)? {
            Some(found) => self.get(to, &found),
            None => Ok(None),
        }
    }

    fn put(&mut self, table: &str, key: &[u8], value: &[u8]) -> Result<(), Aborted> {
        let (table, key) = (self.name(table)?, self.key(key));
        self.view.put(table, &key, value).map_err(|rejection| Aborted::new(rejection.to_string()))
    }

    fn set_column(&mut self, table: &str, key: &[u8], name: &str, bytes: &[u8]) -> Result<(), Aborted> {
        let old = self.get(table, key)?.unwrap_or_default();
        let wrong = || Aborted::new(format!("the entry of '{table}' has no columns"));
        let mut columns = Columns::read(&old).ok_or_else(wrong)?;
        columns.set(name, bytes).map_err(|refusal| Aborted::new(refusal.to_string()))?;
        let value = columns.to_value();
        self.put(table, key, &value)
    }

    fn increment(&mut self, table: &str, key: &[u8]) -> Result<i64, Aborted> {
        let old = self.get(table, key)?;
        let before = old.map_or(Ok(0), |value| <[u8; 8]>::try_from(&value[..]).map(i64::from_be_bytes));
        let before = before.map_err(|_| Aborted::new(format!("the entry of '{table}' is no counter")))?;
        self.put(table, key, &(before + 1).to_be_bytes())?;
        Ok(before)
    }

    fn remove(&mut self, table: &str, key: &[u8]) -> Result<(), Aborted> {
        let (table, key) = (self.name(table)?, self.key(key));
        if self.view.get(table, &key).is_some() {
            self.view.delete(table, &key);
        }
        Ok(())
    }
}
