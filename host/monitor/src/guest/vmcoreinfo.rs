//! The note that Linux keeps in its memory for those who read crash dumps: a page of lines `NAME=VALUE`.

use super::memory::{GuestMemory, Space};
use crate::error::{Error, Result};
use std::collections::BTreeMap;

const PAGE: usize = 4096;
/// Where the kernel's image is mapped before it is moved.
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// How it begins, at the start of a page.
const START: &[u8] = b"OSRELEASE=";
/// Most lines that are kept.
const LINES_MAX: usize = 1024;
/// Most notes that are looked at: kernels that ran before leave theirs.
const NOTES_MAX: usize = 8;

/// The lines.
#[derive(Clone, Debug, Default)]
pub(super) struct VmCoreInfo {
    lines: BTreeMap<String, String>,
    pub release: String,
    pub kernel_offset: u64,
}

impl VmCoreInfo {
    /// Looks for it, page by page. A machine that began anew may hold those of kernels that are gone.
    pub(super) fn find(memory: &GuestMemory) -> Result<Vec<VmCoreInfo>> {
        let mut found = Vec::new();
        let mut page = [0; PAGE];
        let mut start = [0; START.len()];
        // Above 4 GiB there is more in large guests, but the kernel keeps this early page low.
        for at in (0..memory.bytes()).step_by(PAGE) {
            if memory.read_physical(at, &mut start) && start == START && memory.read_physical(at, &mut page) {
                let info = VmCoreInfo::parse(&page);
                // A stale copy of an earlier kernel lacks the lines at the end.
                if info.number("SYMBOL(kallsyms_names)").is_ok() && found.len() < NOTES_MAX {
                    found.push(info);
                }
            }
        }
        if found.is_empty() {
            let reason = "no Linux kernel of 6.0 or later has written its vmcoreinfo: is it booting?";
            return Err(Error::Guest(reason.into()));
        }
        Ok(found)
    }

    pub(super) fn parse(page: &[u8]) -> VmCoreInfo {
        let text = page.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let pairs = text.lines().take(LINES_MAX).filter_map(|line| line.split_once('='));
        let lines: BTreeMap<String, String> =
            pairs.map(|(name, value)| (name.into(), value.into())).collect();
        let release = lines.get("OSRELEASE").cloned().unwrap_or_default();
        let offset = lines.get("KERNELOFFSET").and_then(|offset| u64::from_str_radix(offset, 16).ok());
        VmCoreInfo { lines, release, kernel_offset: offset.unwrap_or(0) }
    }

    /// A value: symbols are hexadecimal, numbers decimal and perhaps negative.
    pub(super) fn number(&self, name: &str) -> Result<u64> {
        let value =
            self.lines.get(name).ok_or_else(|| Error::Guest(format!("its vmcoreinfo has no {name}")))?;
        let number = match name.starts_with("SYMBOL(") {
            true => u64::from_str_radix(value, 16).ok(),
            false => value.parse().ok().or_else(|| value.parse::<i64>().ok().map(|number| number as u64)),
        };
        number.ok_or_else(|| Error::Guest(format!("its vmcoreinfo says {name}={value}")))
    }

    /// How this kernel translates addresses; where all memory is mapped is not known yet.
    pub(super) fn space(&self) -> Result<Space> {
        let tables = self.number("SYMBOL(swapper_pg_dir)")?;
        let base = self.number("NUMBER(phys_base)")?;
        let page_tables = tables.wrapping_sub(KERNEL_MAP).wrapping_add(base);
        let levels = if self.number("NUMBER(pgtable_l5_enabled)").unwrap_or(0) == 1 { 5 } else { 4 };
        Ok(Space { page_tables, levels, direct_map: 0 })
    }
}
