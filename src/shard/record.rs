//! Parquet rows of several columns, lists and structs among them, as JSON objects.
//!
//! Comes in: the columns that are wanted, a row group. Goes out: each row as a JSON object, columns and fields in the order of the schema. Holds: strings stay
//! strings, also where they hold JSON; numbers, lists and structs are what they are. A struct's field that is null is left out, unless it is
//! called `content`: a struct has all fields that any row has, so a null there says that the record had no such field (messages without
//! `tool_calls`), while a message without content says something. Why not the crate's own JSON: it is made of text for dates and numbers
//! that aren't JSON, and writes fields that were never there. Does not know: units, windows.
//!
//! A reader that starts in the middle of a row group decodes it from its start.

use std::sync::Arc;

use parquet::bloom_filter::Sbbf;
use parquet::column::page::PageReader;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::{ReaderIter, RowIter, TreeBuilder};
use parquet::record::{Field, Row};
use parquet::schema::types::{SchemaDescPtr, SchemaDescriptor, Type};
use serde_json::{Map, Value as Json};

use crate::error::{Error, ErrorKind, Result};

/// Which columns make a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// All of them.
    All,
    /// Those of these names that are there; at least one has to be.
    Named(Vec<String>),
}

/// The columns of a file that make its records.
pub(super) struct Records {
    schema: SchemaDescPtr,
    /// Numbers of their leaves in the file's schema.
    pub leaves: Vec<usize>,
}

impl Records {
    /// Finds `columns` in a file's schema.
    ///
    /// # Errors
    /// `Config` - none is there.
    pub fn find(schema: &SchemaDescriptor, columns: &Columns) -> Result<Records> {
        let fields = schema.root_schema().get_fields();
        let kept: Vec<_> = match columns {
            Columns::All => fields.to_vec(),
            Columns::Named(names) => {
                fields.iter().filter(|field| names.iter().any(|name| name == field.name())).cloned().collect()
            }
        };
        if kept.is_empty() {
            let names: Vec<&str> = fields.iter().take(20).map(|field| field.name()).collect();
            let wanted = match columns {
                Columns::All => "at least one column".to_owned(),
                Columns::Named(wanted) => format!("one of {}", wanted.join(", ")),
            };
            return Err(Error::new(
                ErrorKind::Config,
                format!("found the columns {}, expected {wanted}", names.join(", ")),
            ));
        }
        let leaves = (0..schema.num_columns())
            .filter(|&leaf| kept.iter().any(|field| field.name() == schema.get_column_root(leaf).name()))
            .collect();
        let root = Type::group_type_builder(schema.root_schema().name()).with_fields(kept).build();
        let root = root.map_err(|error| Error::new(ErrorKind::Corrupt, "parquet: the schema").because(error))?;
        Ok(Records { schema: Arc::new(SchemaDescriptor::new(Arc::new(root))), leaves })
    }

    /// A reader of a row group's rows, from its first; `object` gives the bytes of a leaf.
    pub fn open<R: ChunkReader + 'static>(
        &self,
        group: &RowGroupMetaData,
        object: &dyn Fn(usize) -> Arc<R>,
    ) -> ParquetResult<ReaderIter> {
        let objects = self.leaves.iter().map(|&leaf| (leaf, object(leaf))).collect();
        // Row by row: a value is decoded when its row comes.
        TreeBuilder::new().with_batch_size(64).as_iter(self.schema.clone(), &Group { group, objects })
    }
}

/// A row group, read through objects of our own.
struct Group<'a, R> {
    group: &'a RowGroupMetaData,
    objects: Vec<(usize, Arc<R>)>,
}

impl<R: ChunkReader + 'static> RowGroupReader for Group<'_, R> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.group
    }

    fn num_columns(&self) -> usize {
        self.group.num_columns()
    }

    fn get_column_page_reader(&self, leaf: usize) -> ParquetResult<Box<dyn PageReader>> {
        let found = self.objects.iter().find(|(other, _)| *other == leaf);
        let (_, object) = found.ok_or_else(|| ParquetError::General(format!("column {leaf} wasn't asked for")))?;
        let rows = usize::try_from(self.group.num_rows())?;
        Ok(Box::new(SerializedPageReader::new(object.clone(), self.group.column(leaf), rows, None)?))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, _: Option<Type>) -> ParquetResult<RowIter<'_>> {
        Err(ParquetError::NYI("rows come from the tree of readers".into()))
    }
}

/// A row as the bytes of a JSON object; where binary data in it isn't UTF-8, those bytes, which no record can be.
pub(super) fn bytes_of(row: Row) -> Vec<u8> {
    let fields = row.into_columns().into_iter();
    let object: Result<Map<String, Json>, Vec<u8>> = fields.map(|(name, field)| Ok((name, json(field)?))).collect();
    object.map_or_else(
        |bytes| bytes,
        |object| serde_json::to_vec(&object).expect("JSON values are written without an error"),
    )
}

/// A value; the bytes that aren't UTF-8 where some of it aren't.
fn json(field: Field) -> Result<Json, Vec<u8>> {
    Ok(match field {
        Field::Null => Json::Null,
        Field::Bool(value) => value.into(),
        Field::Byte(value) => value.into(),
        Field::Short(value) => value.into(),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => value.into(),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => value.into(),
        Field::UByte(value) => value.into(),
        Field::UShort(value) => value.into(),
        Field::UInt(value) => value.into(),
        Field::ULong(value) => value.into(),
        Field::Float16(value) => f64::from(f32::from(value)).into(),
        Field::Float(value) => f64::from(value).into(),
        Field::Double(value) => value.into(),
        Field::Decimal(_) => field.to_string().into(),
        Field::Str(value) => value.into(),
        Field::Bytes(value) => String::from_utf8(value.data().to_vec()).map_err(|error| error.into_bytes())?.into(),
        Field::Group(row) => {
            let fields = row.into_columns().into_iter();
            let kept = fields.filter(|(name, field)| name == "content" || !matches!(field, Field::Null));
            Json::Object(kept.map(|(name, field)| Ok((name, json(field)?))).collect::<Result<_, Vec<u8>>>()?)
        }
        Field::ListInternal(list) => {
            Json::Array(list.elements().iter().cloned().map(json).collect::<Result<_, Vec<u8>>>()?)
        }
        Field::MapInternal(map) => {
            let key = |key: &Field| match key {
                Field::Str(key) => key.clone(),
                other => other.to_string(),
            };
            let entries = map.entries().iter().map(|(k, value)| Ok((key(k), json(value.clone())?)));
            Json::Object(entries.collect::<Result<_, Vec<u8>>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use parquet::data_type::ByteArray;

    use super::*;

    /// Values keep their kinds; null fields of structs are left out but for content; what isn't UTF-8 is no record.
    #[test]
    fn rows_become_objects() {
        let check = |fields: Vec<(&str, Field)>, expected: &[u8]| {
            let named = fields.into_iter().map(|(name, field)| (name.to_owned(), field)).collect();
            assert_eq!(String::from_utf8_lossy(&bytes_of(Row::new(named))), String::from_utf8_lossy(expected));
        };
        let text = |bytes: &[u8]| Field::Bytes(ByteArray::from(bytes.to_vec()));
        check(
            vec![("b", Field::Long(-3)), ("a", Field::Double(0.5)), ("n", Field::Null)],
            br#"{"b":-3,"a":0.5,"n":null}"#,
        );
        check(
            vec![("s", Field::Str("{\"x\": 1}".into())), ("t", text("ü".as_bytes()))],
            "{\"s\":\"{\\\"x\\\": 1}\",\"t\":\"ü\"}".as_bytes(),
        );
        let said = Row::new(vec![
            ("content".into(), Field::Null),
            ("name".into(), Field::Null),
            ("role".into(), Field::Str("user".into())),
        ]);
        check(vec![("m", Field::Group(said))], br#"{"m":{"content":null,"role":"user"}}"#);
        let row = Row::new(vec![("a".into(), Field::Long(1)), ("b".into(), text(b"\xff\xfe"))]);
        assert_eq!(bytes_of(row), b"\xff\xfe");
    }
}
