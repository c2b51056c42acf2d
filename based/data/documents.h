// Reads documents from files in three formats: plain text (.txt, .md: one document per file), JSON lines (.jsonl, .ndjson: the field "text"
// of each line) and FASTA (.fa, .fasta, .fna: the letters of each record, unchanged). Files may be compressed (an additional .zst). The
// case of file extensions does not matter.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

// by_name takes the format from the file name and rejects names without a known extension. by_name_or_text reads such files as text, such
// as pipes or `wiki.test.raw`, unless the extension is that of an unsupported format, such as .json, .csv or .gz.
enum class TextFormat { by_name, by_name_or_text, text, json_lines, fasta };

// From "auto" (by_name), "text", "jsonl" or "fasta". Throws UsageError for other names.
TextFormat text_format(const std::string& name);

inline constexpr size_t kMaxDocumentBytes = size_t{1} << 31;

// Calls `document` for each document of the file in order. The file is read as a stream, so that memory is bounded by the longest document.
// Throws Error as "<file>:<line>: <reason>" for lines that are not JSON, FASTA records without a header or with characters other than
// letters,
// '*' and '-', damaged or truncated compression, documents above 2 GiB, and file names without a known format.
void read_documents(const std::string& path, TextFormat format, const std::function<void(std::string_view)>& document);

// As read_documents, and also passes each document's place for messages: "<file>:<line>" of the JSON line or the FASTA header, or "<file>"
// for plain text.
void read_named_documents(const std::string& path, TextFormat format,
                          const std::function<void(std::string_view text, const std::string& place)>& document);

}  // namespace based
