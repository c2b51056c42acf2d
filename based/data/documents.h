// Reads documents from files in three formats: plain text (.txt, .md: one document per file), JSON lines (.jsonl, .ndjson: the field "text"
// of each line, and its source, "meta": {"pile_set_name": "…"}, if it has one) and FASTA (.fa, .fasta, .fna: the letters of each record,
// unchanged). Files may be compressed (an additional .zst). The case of file extensions does not matter.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/error.h"

namespace based {

// by_name takes the format from the file name and rejects names without a known extension. by_name_or_text reads such files as text, such
// as pipes or `wiki.test.raw`, unless the extension is that of an unsupported format, such as .json, .csv or .gz.
enum class TextFormat { by_name, by_name_or_text, text, json_lines, fasta };

// From "auto" (by_name), "text", "jsonl" or "fasta". Throws UsageError for other names.
TextFormat text_format(const std::string& name);

inline constexpr size_t kMaxDocumentBytes = size_t{1} << 31;

struct Document {
  std::string_view text;
  std::string_view source;  // meta.pile_set_name of a JSON line; "": none
  int64_t line = 0;         // its JSON line or FASTA header, from 1; 0: the document is the whole file
};

// Consecutive documents of a file that are not parsed yet, so that several threads can parse the blocks of a file.
struct DocumentBlock {
  struct Record {
    size_t end;    // in `bytes`; the record starts at the end of the one before
    int64_t line;  // as Document::line
  };
  std::string path;
  TextFormat format = TextFormat::text;  // text, json_lines or fasta
  std::string bytes;                     // lines of JSON, sequences of FASTA, or a whole text
  std::vector<Record> records;
  int64_t bytes_read = 0;  // position in the file after this block; in compressed bytes if the file is compressed
};

// Calls `block` for the blocks of the file in order. A block holds the documents that end within one piece of at most 128 KiB of the file.
// The file is read as a stream, so that memory is bounded by the longest document. Throws Error as "<file>:<line>: <reason>" for FASTA
// records without a header or with characters other than letters, '*' and '-', damaged or truncated compression, documents above 2 GiB,
// and file names without a known format.
void read_blocks(const std::string& path, TextFormat format, const std::function<void(DocumentBlock&&)>& block);

// Calls `document` for each document of a block in order. Throws Error as "<file>:<line>: <reason>" for lines that are not JSON objects
// with a text, and for a name of a source that is not a string of at most 255 bytes without control characters. Thread-safe.
void parse_block(const DocumentBlock& block, const std::function<void(const Document&)>& document);

// Calls `document` for each document of the file in order. Throws the errors of read_blocks and parse_block.
void read_documents(const std::string& path, TextFormat format, const std::function<void(std::string_view)>& document);

// As read_documents, and also passes each document's place for messages: "<file>:<line>" of the JSON line or the FASTA header, or "<file>"
// for plain text.
void read_named_documents(const std::string& path, TextFormat format,
                          const std::function<void(std::string_view text, const std::string& place)>& document);

}  // namespace based
