#include "based/theory/draw.h"

#include <algorithm>
#include <iterator>

#include "based/core/text.h"
#include "based/theory/integers.h"

namespace based::theory {
namespace {

bool zero_row(const IntMatrix& matrix, int64_t row) {
  return std::all_of(matrix.row(row), matrix.row(row) + matrix.size.columns, [](int64_t value) { return value == 0; });
}

int64_t used_rows(const IntMatrix& matrix) {
  int64_t rows = matrix.size.rows;
  while (rows > 1 && zero_row(matrix, rows - 1)) --rows;
  return rows;
}

std::string numbered(size_t layer, const std::string& what) { return (layer == 0 ? "" : "layer " + std::to_string(layer) + ": ") + what; }

// Zeros are points, so that what is there stands out; rows of zeros in a row are one line.
std::string matrix_text(const IntMatrix& matrix) {
  constexpr int64_t kMany = 3;
  size_t width = 1;
  for (const int64_t value : matrix.cells) width = std::max(width, std::to_string(value).size());
  std::string text;
  const int64_t rows = used_rows(matrix);
  for (int64_t i = 0; i < rows; ++i) {
    int64_t zeros = 0;
    while (i + zeros < rows && zero_row(matrix, i + zeros)) ++zeros;
    if (zeros >= kMany) {
      text += padded_left("", 6) + "… " + std::to_string(zeros) + " rows of zeros\n";
      i += zeros - 1;
      continue;
    }
    text += padded_left(std::to_string(i + 1), 5) + " ";
    for (int64_t j = 0; j < matrix.size.columns; ++j)
      text += " " + padded_left(matrix.at(i, j) == 0 ? "." : std::to_string(matrix.at(i, j)), width);
    text += "\n";
  }
  return text;
}

constexpr int64_t kCell = 14, kMargin = 16, kTitle = 34, kSheet = 1400;

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return result;
}

std::string at(int64_t x, int64_t y) { return "x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\""; }

std::string text_at(int64_t x, int64_t y, const std::string& text, const std::string& style) {
  return "<text " + at(x, y) + " " + style + ">" + escaped(text) + "</text>\n";
}

std::string matrix_svg(const IntMatrix& matrix, int64_t x, int64_t y) {
  std::string svg = "<rect " + at(x, y) + " width=\"" + std::to_string(matrix.size.columns * kCell) + "\" height=\"" +
                    std::to_string(used_rows(matrix) * kCell) + "\" fill=\"#eeeeee\"/>\n";
  for (int64_t i = 0; i < used_rows(matrix); ++i) {
    for (int64_t j = 0; j < matrix.size.columns; ++j) {
      const int64_t value = matrix.at(i, j);
      if (value == 0) continue;
      svg += "<rect " + at(x + j * kCell, y + i * kCell) + " width=\"13\" height=\"13\" fill=\"" + (value > 0 ? "#1f5fa8" : "#b03a2e") +
             "\"/>\n";
      svg += text_at(x + j * kCell + kCell / 2, y + i * kCell + 10, std::to_string(value), "class=\"n\"");
    }
  }
  return svg;
}

}  // namespace

std::vector<Frame> frames(const Example& example) {
  std::vector<Frame> all{{"input", corner(example.input, example.program.inner)}};
  Integers arithmetic;
  run<Integers>(example.program, example.input, arithmetic, [&](const Layer& layer, const IntMatrix& matrix) {
    all.push_back({layer.what, matrix});
  });
  return all;
}

std::string draw_text(const Statement& statement) {
  const Example example = statement.example();
  std::string text = std::string(statement.name) + ": " + statement.claim + "\n" + example.about +
                     "\n(N, L, d, N', d') = " + example.program.tuple() + "\n";
  const auto all = frames(example);
  for (size_t k = 0; k < all.size(); ++k) text += "\n" + numbered(k, all[k].what) + "\n" + matrix_text(all[k].matrix);
  return text;
}

std::string draw_svg(const Statement& statement) {
  const Example example = statement.example();
  const auto all = frames(example);
  std::string body;
  int64_t x = kMargin, y = 3 * kMargin + kTitle, line = 0, right = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const std::string title = numbered(k, all[k].what);
    const int64_t width = std::max(all[k].matrix.size.columns * kCell, static_cast<int64_t>(title.size()) * 6);
    if (x > kMargin && x + width > kSheet) x = kMargin, y += line + kTitle, line = 0;
    body += text_at(x, y + 12, title, "class=\"t\"") + matrix_svg(all[k].matrix, x, y + 18);
    line = std::max(line, used_rows(all[k].matrix) * kCell + 18);
    right = std::max(right, x + width);
    x += width + 2 * kMargin;
  }
  const std::string heading = std::string(statement.name) + ": " + statement.claim;
  right = std::max(right, static_cast<int64_t>(std::max(heading.size(), example.about.size())) * 8);
  const std::string width = std::to_string(right + kMargin), height = std::to_string(y + line + kMargin);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " +
         height +
         "\" font-family=\"sans-serif\">\n<style>.t{font-size:11px;fill:#333}.n{font-size:9px;fill:#fff;text-anchor:middle}</style>\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
         text_at(kMargin, 2 * kMargin, heading, "font-size=\"16\"") +
         text_at(kMargin, 3 * kMargin + 8, example.about + " (N, L, d, N', d') = " + example.program.tuple(), "font-size=\"12\"") + body +
         "</svg>\n";
}

}  // namespace based::theory
