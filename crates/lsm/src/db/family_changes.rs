//! Creation and drop of families, each durable when its call returns.

use super::families::FamilyEntry;
use super::pages;
use super::store::Db;
use crate::options::FamilyOptions;
use crate::version::edit::Edit;
use basalt_fs::{Error, ErrorKind, Result};
use basalt_kv::family::Family;
use std::sync::Arc;

impl Db {
    /// Creates a family. The family is durable when the call returns.
    ///
    /// Errors: `AlreadyExists` if the name is taken. `InvalidArgument` for an empty name, a name of
    /// more than 255 bytes, or an option outside its range.
    pub fn create_family(&self, name: &str, options: FamilyOptions) -> Result<Family> {
        options.validate(name)?;
        if name.is_empty() || name.len() > 255 {
            return Err(Error::invalid(format!(
                "a family name has 1 to 255 bytes, {name:?} has {}",
                name.len()
            )));
        }
        let engine = self.engine();
        engine.ctx.check_writable()?;
        // Serialises makers: names and ids are looked up and taken in one step.
        let mut writer = engine.writes.lock();
        // It may have been closed while the lock was waited for.
        engine.ctx.check_open()?;
        if self.family(name).is_some() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("family {name:?} exists"),
            ));
        }
        // Without this sync, a power cut could lose writes made before the creation while the
        // manifest keeps the family. The writes that survive must be a prefix of all that was done.
        engine.sync_log(&mut writer)?;
        let id = engine.tree.lock().catalog().next_family;
        let entry = FamilyEntry {
            id,
            name: name.into(),
            options: Arc::new(options),
            scan_history: Arc::default(),
            dropped_tombstones: Arc::default(),
        };
        let cmp = entry.options.comparator.clone();
        let tree = match &entry.options.pages {
            Some(_) => {
                let (tables, dir) = (&engine.ctx.tables, &engine.ctx.dir);
                Some(pages::create(tables, dir, id, name, &entry.options)?)
            }
            None => None,
        };
        if writer.passive.is_some() && engine.flushes_atomically() {
            // The flags of sets that were sealed before do not name the new family.
            engine.flush_all()?;
        }
        // No transaction so far has items of the family, so it is persisted up to the last one.
        // With atomic flushes it gets the flag of the other families, so that all stay as of one
        // transaction.
        let flag = writer
            .passive
            .as_ref()
            .map(|position| match engine.flushes_atomically() {
                true => engine
                    .tree
                    .catalog()
                    .least_flag()
                    .unwrap_or(position.last()),
                false => position.last(),
            });
        if let Some(flag) = &flag {
            engine.make_owner_durable(flag.tsn)?;
        }
        let edit = Edit {
            next_family: Some(id + 1),
            add_families: vec![(id, name.to_string(), cmp.name().to_string())],
            merge_operators: entry
                .options
                .merge_operator
                .iter()
                .map(|o| (id, o.name().to_string()))
                .collect(),
            pages: tree.iter().map(|_| (id, 0)).collect(),
            flush_flags: flag.iter().map(|flag| (*flag, vec![id])).collect(),
            ..Edit::default()
        };
        let handle = self.handle(&entry);
        engine.tree.install(edit, Vec::new(), |_, view| {
            let mut families = (*view.families).clone();
            families.insert(id, entry);
            view.families = Arc::new(families);
            if let Some(tree) = tree {
                Arc::make_mut(&mut view.pages).insert(id, tree);
            }
            view.active = view.active.with_family(id, cmp);
        })?;
        engine.note_family_created(&writer, id);
        Ok(handle)
    }

    /// Drops a family and all its keys. The drop is durable when the call returns.
    ///
    /// Errors: `InvalidArgument` for the family `default`, which cannot be dropped. `NotFound` if
    /// the family was dropped before or belongs to another store.
    pub fn drop_family(&self, family: &Family) -> Result<()> {
        let engine = self.engine();
        engine.ctx.check_writable()?;
        if family.id() == 0 {
            return Err(Error::invalid("the family \"default\" cannot be dropped"));
        }
        // No group is between its log record and its memtables while we hold this.
        let mut writer = engine.writes.lock();
        // It may have been closed while the lock was waited for.
        engine.ctx.check_open()?;
        if family.store() != engine.ctx.jobs.number()
            || !engine.tree.view().families.contains_key(&family.id())
        {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("family {:?} was dropped", family.name()),
            ));
        }
        // Writes made before the drop must survive if the drop does, as in `create_family`.
        engine.sync_log(&mut writer)?;
        let id = family.id();
        let edit = Edit {
            drop_families: vec![id],
            ..Edit::default()
        };
        engine.tree.install(edit, Vec::new(), |_, view| {
            view.active = view.active.without_family(id);
        })?;
        if let Some(position) = &mut writer.passive {
            position.forget(id);
        }
        engine.report_point();
        Ok(())
    }
}
