// Documents from files of text: plain (.txt, .md: one document a file), JSON lines (.jsonl, .ndjson: the field "text" of every line) and
// FASTA
// (.fa, .fasta, .fna: the letters of every record, as they stand). Each may be compressed (.zst after the name). Upper case names are the
// same.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

// by_name refuses a name that does not tell the format. by_name_or_text takes it for text, as a pipe's or `wiki.test.raw`, unless the name
// tells a format that is not read, such as .json, .csv or .gz.
enum class TextFormat { by_name, by_name_or_text, text, json_lines, fasta };

// "auto" (by_name), "text", "jsonl" or "fasta"; throws UsageError.
TextFormat text_format(const std::string& name);

inline constexpr size_t kMaxDocumentBytes = size_t{1} << 31;

// Calls `document` for each document of the file in order, which is read as a stream: memory is bounded by the longest document. Throws
// Error as "<file>:<line>: what is wrong" for lines that are no JSON, records without a header or with other characters than letters, '*'
// and '-', damaged or cut compression, a document above 2 GiB, and a name that does not tell the format.
void read_documents(const std::string& path, TextFormat format, const std::function<void(std::string_view)>& document);

// As read_documents, with each document's place for messages: "<file>:<line>" of the JSON line or the record's header, "<file>" of a text.
void read_named_documents(const std::string& path, TextFormat format,
                          const std::function<void(std::string_view text, const std::string& place)>& document);

}  // namespace based
