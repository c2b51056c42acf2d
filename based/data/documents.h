// Documents from files of text: plain (.txt, .md: one document a file), JSON lines (.jsonl: the field "text" of every line) and FASTA (.fa,
// .fasta, .fna: the letters of every record, as they stand). Each may be compressed (.zst behind the name).
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "based/core/error.h"

namespace based {

enum class TextFormat { by_name, text, json_lines, fasta };

// "auto", "text", "jsonl" or "fasta"; throws UsageError.
TextFormat text_format(const std::string& name);

inline constexpr size_t kMaxDocumentBytes = size_t{1} << 31;

// Calls `document` for each document of the file in order, which is read as a stream: memory is bounded by the longest document. Throws
// Error as "<file>:<line>: what is wrong" for lines that are no JSON, records without a header or with other characters than letters, '*'
// and '-', damaged or cut compression, a document above 2 GiB, and a name that does not tell the format.
void read_documents(const std::string& path, TextFormat format, const std::function<void(std::string_view)>& document);

}  // namespace based
