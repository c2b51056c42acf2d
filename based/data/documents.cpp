#include "based/data/documents.h"

#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/json_member.h"
#include "based/core/text.h"

namespace based {
namespace {

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Reads a file in pieces, decompressed if its name ends in .zst.
class ByteStream {
 public:
  explicit ByteStream(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "rb"), &std::fclose), input_(1 << 17) {
    if (!file_) throw Error(path + ": " + system_message(errno));
    if (ends_with(path, ".zst")) {
      zstd_.reset(ZSTD_createDStream());
      output_.resize(ZSTD_DStreamOutSize());
    }
  }

  int64_t bytes_read() const { return bytes_read_; }

  // The next bytes, valid until the next call; empty at the end.
  std::string_view next() {
    if (!zstd_) return read();
    for (;;) {
      if (pending_.pos == pending_.size) {
        const std::string_view bytes = read();
        if (bytes.empty()) {
          if (bytes_read_ == 0) throw Error(path_ + ": cut off: it is empty, and compressed data has at least one frame");
          if (inside_frame_) throw Error(path_ + ": cut off: it ends inside a compressed frame");
          return {};
        }
        pending_ = {bytes.data(), bytes.size(), 0};
      }
      ZSTD_outBuffer out{output_.data(), output_.size(), 0};
      const size_t left = ZSTD_decompressStream(zstd_.get(), &out, &pending_);
      if (ZSTD_isError(left)) throw Error(path_ + ": damaged zstd data: " + ZSTD_getErrorName(left));
      inside_frame_ = left != 0;
      if (out.pos > 0) return {output_.data(), out.pos};
    }
  }

 private:
  std::string_view read() {
    for (;;) {
      const size_t count = std::fread(input_.data(), 1, input_.size(), file_.get());
      bytes_read_ += static_cast<int64_t>(count);
      if (count > 0 || !std::ferror(file_.get())) return {input_.data(), count};
      if (errno != EINTR) throw Error(path_ + ": " + system_message(errno));
      if (interrupted()) throw Error(path_ + ": interrupted while it was read");
      std::clearerr(file_.get());
    }
  }

  struct FreeStream {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::unique_ptr<ZSTD_DStream, FreeStream> zstd_;
  std::vector<char> input_, output_;
  ZSTD_inBuffer pending_{nullptr, 0, 0};
  bool inside_frame_ = false;
  int64_t bytes_read_ = 0;
};

void append_bounded(std::string& document, std::string_view more, const std::string& path) {
  if (document.size() + more.size() > kMaxDocumentBytes) throw Error(path + ": a document is longer than 2 GiB; split it");
  try {
    document += more;
  } catch (const std::bad_alloc&) {
    throw Error(path + ": a document is too long for the memory here, at " + std::to_string(document.size()) + " bytes; split it");
  }
}

// Collects records into blocks.
class BlockWriter {
 public:
  BlockWriter(const std::string& path, TextFormat format, const std::function<void(DocumentBlock&&)>& block)
      : path_(path), format_(format), give_(block) {}

  void add(std::string_view record, int64_t line) {
    begin_record(record.size());
    append_bounded(block_.bytes, record, path_);
    block_.records.push_back({block_.bytes.size(), line});
  }
  void add(std::string&& record, int64_t line) {
    begin_record(record.size());
    if (!block_.records.empty()) return add(std::string_view(record), line);
    block_.bytes = std::move(record);
    block_.records.push_back({block_.bytes.size(), line});
  }
  // `bytes_read`: of the file so far
  void end_block(int64_t bytes_read) {
    bytes_read_ = bytes_read;
    if (block_.records.empty()) return;
    block_.path = path_;
    block_.format = format_;
    block_.bytes_read = bytes_read;
    give_(std::exchange(block_, {}));
  }

 private:
  void begin_record(size_t bytes) {
    constexpr size_t kMostBytes = 1 << 20;  // the limit for a block with several records
    if (block_.bytes.size() + bytes > kMostBytes) end_block(bytes_read_);
  }

  const std::string& path_;
  TextFormat format_;
  const std::function<void(DocumentBlock&&)>& give_;
  DocumentBlock block_;
  int64_t bytes_read_ = 0;
};

// Calls `line` with every line, without its line feed, and its number from 1, and `piece_end` with the bytes read after each piece of the
// file. Returns the bytes read.
int64_t for_each_line(const std::string& path, const std::function<void(std::string_view, int64_t)>& line,
                      const std::function<void(int64_t)>& piece_end) {
  ByteStream stream(path);
  std::string held;  // the start of a line whose end is not yet read
  int64_t number = 0;
  for (std::string_view piece = stream.next(); !piece.empty(); piece = stream.next()) {
    while (!piece.empty()) {
      const size_t stop = piece.find('\n');
      if (stop == std::string_view::npos) {
        append_bounded(held, piece, path);
        break;
      }
      if (held.empty()) {
        line(piece.substr(0, stop), ++number);
      } else {
        append_bounded(held, piece.substr(0, stop), path);
        line(held, ++number);
        held.clear();
      }
      piece.remove_prefix(stop + 1);
    }
    piece_end(stream.bytes_read());
  }
  if (!held.empty()) line(held, ++number);
  return stream.bytes_read();
}

void read_json_lines(const std::string& path, BlockWriter& blocks) {
  const int64_t read = for_each_line(
      path,
      [&](std::string_view line, int64_t number) {
        if (!line.empty() && line != "\r") blocks.add(line, number);
      },
      [&](int64_t bytes_read) { blocks.end_block(bytes_read); });
  blocks.end_block(read);
}

void read_fasta(const std::string& path, BlockWriter& blocks) {
  std::string sequence;
  int64_t header = 0;  // line of the record's header; 0: none yet
  const auto finish = [&] {
    if (header > 0 && sequence.empty()) throw Error(path + ":" + std::to_string(header) + ": the record has no sequence");
    if (header > 0) blocks.add(std::move(sequence), header);
    sequence.clear();
  };
  const int64_t read = for_each_line(
      path,
      [&](std::string_view line, int64_t number) {
        if (ends_with(line, "\r")) line.remove_suffix(1);
        if (line.empty()) return;
        const std::string where = path + ":" + std::to_string(number);
        if (line.front() == '>') {
          finish();
          header = number;
          return;
        }
        if (header == 0) throw Error(where + ": a FASTA file must start with a line '>name'");
        for (const char c : line) {
          const bool known = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '*' || c == '-';
          if (!known) throw Error(where + ": " + in_quotes(std::string_view(&c, 1)) + " is no letter of a sequence");
        }
        append_bounded(sequence, line, path);
      },
      [&](int64_t bytes_read) { blocks.end_block(bytes_read); });
  finish();
  blocks.end_block(read);
}

void read_text(const std::string& path, BlockWriter& blocks) {
  ByteStream stream(path);
  std::string text;
  for (std::string_view piece = stream.next(); !piece.empty(); piece = stream.next()) append_bounded(text, piece, path);
  if (!text.empty()) blocks.add(std::move(text), 0);
  blocks.end_block(stream.bytes_read());
}

void check_source_name(std::string_view name, const std::string& path, int64_t line) {
  constexpr size_t kLongest = 255;
  const bool control = std::any_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (name.size() > kLongest || control)
    throw Error(path + ":" + std::to_string(line) + ": meta.pile_set_name must have at most 255 bytes and no control characters, is " +
                in_quotes(name));
}

// The source that a line names, or "".
std::string source_of_line(const Json& value, const std::string& where) {
  const auto meta = value.find("meta");
  if (meta == value.end() || !meta->is_object() || !meta->contains("pile_set_name")) return "";
  const Json& name = meta->at("pile_set_name");
  if (!name.is_string()) throw Error(where + ": meta.pile_set_name must be a string");
  return name;
}

// Scratch space of parse_json_line, kept from line to line.
struct LineText {
  std::string text, source;
};

void parse_json_line(std::string_view line, const std::string& path, int64_t number, LineText& out) {
  const auto where = [&] { return path + ":" + std::to_string(number); };
  if (read_members(line, "text", out.text, {"meta", "pile_set_name"}, out.source)) {
    check_source_name(out.source, path, number);
    return;
  }
  const Json value = parse_json(line, where());
  const auto text = value.is_object() ? value.find("text") : value.end();
  if (text == value.end() || !text->is_string()) throw Error(where() + ": needs an object with the text in 'text'");
  out.text = text->get_ref<const std::string&>();
  out.source = source_of_line(value, where());
  check_source_name(out.source, path, number);
}

bool ends_with_any(std::string_view text, std::initializer_list<const char*> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const char* end) { return ends_with(text, end); });
}

TextFormat format_of_name(const std::string& path, bool else_text) {
  std::string name = path;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (ends_with(name, ".zst")) name.resize(name.size() - 4);
  if (ends_with_any(name, {".txt", ".md"})) return TextFormat::text;
  if (ends_with_any(name, {".fa", ".fasta", ".fna"})) return TextFormat::fasta;
  if (ends_with_any(name, {".jsonl", ".ndjson"})) return TextFormat::json_lines;
  const bool other = ends_with_any(
      name, {".json", ".csv", ".tsv", ".parquet", ".arrow", ".gz", ".bz2", ".xz", ".zip", ".tar", ".bin", ".npy", ".safetensors"});
  if (other || !else_text)
    throw Error(path + (other && else_text ? ": the name tells a format that is not read" : ": the name does not tell the format") +
                "; give the format as text, jsonl or fasta, or name the file .txt, .jsonl or .fa");
  return TextFormat::text;
}

}  // namespace

TextFormat text_format(const std::string& name) {
  if (name == "auto") return TextFormat::by_name;
  if (name == "text") return TextFormat::text;
  if (name == "jsonl") return TextFormat::json_lines;
  if (name == "fasta") return TextFormat::fasta;
  throw UsageError("format must be auto, text, jsonl or fasta, got " + in_quotes(name));
}

void read_blocks(const std::string& path, TextFormat format, const std::function<void(DocumentBlock&&)>& block) {
  const bool by_name = format == TextFormat::by_name || format == TextFormat::by_name_or_text;
  const TextFormat known = by_name ? format_of_name(path, format == TextFormat::by_name_or_text) : format;
  BlockWriter blocks(path, known, block);
  switch (known) {
    case TextFormat::json_lines: return read_json_lines(path, blocks);
    case TextFormat::fasta: return read_fasta(path, blocks);
    default: return read_text(path, blocks);
  }
}

void parse_block(const DocumentBlock& block, const std::function<void(const Document&)>& document) {
  LineText parsed;
  size_t start = 0;
  for (const DocumentBlock::Record& record : block.records) {
    const std::string_view bytes = std::string_view(block.bytes).substr(start, record.end - start);
    start = record.end;
    if (block.format == TextFormat::json_lines) {
      parse_json_line(bytes, block.path, record.line, parsed);
      document({parsed.text, parsed.source, record.line});
    } else {
      document({bytes, {}, record.line});
    }
  }
}

void read_named_documents(const std::string& path, TextFormat format,
                          const std::function<void(std::string_view text, const std::string& place)>& document) {
  read_blocks(path, format, [&](const DocumentBlock& block) {
    parse_block(block, [&](const Document& each) { document(each.text, each.line > 0 ? path + ":" + std::to_string(each.line) : path); });
  });
}

void read_documents(const std::string& path, TextFormat format, const std::function<void(std::string_view)>& document) {
  read_blocks(path, format, [&](const DocumentBlock& block) { parse_block(block, [&](const Document& each) { document(each.text); }); });
}

}  // namespace based
