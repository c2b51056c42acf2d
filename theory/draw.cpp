#include "theory/draw.h"

#include <algorithm>
#include <iterator>

#include "based/core/text.h"
#include "theory/integers.h"

namespace based::theory {
namespace {

bool zero_row(const IntMatrix& matrix, int64_t row) {
  return std::all_of(matrix.row(row), matrix.row(row) + matrix.size.columns, [](int64_t value) { return value == 0; });
}

// A line of a drawing: one row, or many consecutive rows of zeros.
struct Line {
  int64_t row, zeros;  // zeros: the number of rows of zeros from `row` on; 0: only the row itself
};

// Rows of zeros at the end are left out, except for the first row.
std::vector<Line> lines_of(const IntMatrix& matrix) {
  constexpr int64_t kMany = 3;
  int64_t rows = matrix.size.rows;
  while (rows > 1 && zero_row(matrix, rows - 1)) --rows;
  std::vector<Line> lines;
  for (int64_t i = 0; i < rows;) {
    int64_t zeros = 0;
    while (i + zeros < rows && zero_row(matrix, i + zeros)) ++zeros;
    lines.push_back({i, zeros >= kMany ? zeros : 0});
    i += std::max<int64_t>(1, lines.back().zeros);
  }
  return lines;
}

std::string zeros_text(int64_t zeros) { return "… " + std::to_string(zeros) + " rows of zeros"; }

int64_t digits_of(const IntMatrix& matrix) {
  size_t digits = 1;
  for (const int64_t value : matrix.cells) digits = std::max(digits, std::to_string(value).size());
  return static_cast<int64_t>(digits);
}

std::string numbered(size_t layer, const std::string& what) { return (layer == 0 ? "" : "layer " + std::to_string(layer) + ": ") + what; }

// Zeros are drawn as points, so that other entries stand out.
std::string matrix_text(const IntMatrix& matrix) {
  const auto width = static_cast<size_t>(digits_of(matrix));
  std::string text;
  for (const auto& [row, zeros] : lines_of(matrix)) {
    if (zeros > 0) {
      text += padded_left("", 6) + zeros_text(zeros) + "\n";
      continue;
    }
    text += padded_left(std::to_string(row + 1), 5) + " ";
    for (int64_t j = 0; j < matrix.size.columns; ++j)
      text += " " + padded_left(matrix.at(row, j) == 0 ? "." : std::to_string(matrix.at(row, j)), width);
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

std::string rectangle(int64_t x, int64_t y, int64_t width, int64_t height, const std::string& fill) {
  return "<rect " + at(x, y) + " width=\"" + std::to_string(width) + "\" height=\"" + std::to_string(height) + "\" fill=\"" + fill +
         "\"/>\n";
}

// Cells are wide enough for the longest number.
int64_t cell_width(const IntMatrix& matrix) { return std::max(kCell, 6 * digits_of(matrix) + 4); }
int64_t width_of(const IntMatrix& matrix) { return matrix.size.columns * cell_width(matrix); }
int64_t height_of(const IntMatrix& matrix) { return static_cast<int64_t>(lines_of(matrix).size()) * kCell; }

std::string matrix_svg(const IntMatrix& matrix, int64_t x, int64_t y) {
  const int64_t cell = cell_width(matrix);
  std::string svg = rectangle(x, y, width_of(matrix), height_of(matrix), "#eeeeee");
  for (const auto& [row, zeros] : lines_of(matrix)) {
    if (zeros > 0) svg += text_at(x + 2, y + 10, zeros_text(zeros), "class=\"z\"");
    for (int64_t j = 0; j < matrix.size.columns; ++j) {
      const int64_t value = matrix.at(row, j);
      if (value == 0) continue;
      svg += rectangle(x + j * cell, y, cell - 1, kCell - 1, value > 0 ? "#1f5fa8" : "#b03a2e");
      svg += text_at(x + j * cell + cell / 2, y + 10, std::to_string(value), "class=\"n\"");
    }
    y += kCell;
  }
  return svg;
}

}  // namespace

Drawing drawing_of(const Statement& statement) {
  if (statement.example == nullptr) return statement.drawing();
  const Example example = statement.example();
  Drawing drawing{example.about + " (N, L, d, N', d') = " + example.program.tuple(), {}};
  drawing.frames.push_back({"input", corner(example.input, example.program.inner)});
  Integers arithmetic;
  run<Integers>(example.program, example.input, arithmetic, [&](const Layer& layer, const IntMatrix& matrix) {
    drawing.frames.push_back({layer.what, matrix});
  });
  return drawing;
}

std::string draw_text(const Statement& statement) {
  const auto [about, frames] = drawing_of(statement);
  std::string text = std::string(statement.name) + ": " + statement.claim + "\n" + about + "\n";
  for (size_t k = 0; k < frames.size(); ++k) text += "\n" + numbered(k, frames[k].what) + "\n" + matrix_text(frames[k].matrix);
  return text;
}

std::string draw_svg(const Statement& statement) {
  const auto [about, all] = drawing_of(statement);
  std::string body;
  int64_t x = kMargin, y = 3 * kMargin + kTitle, line = 0, right = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const std::string title = numbered(k, all[k].what);
    const int64_t width = std::max(width_of(all[k].matrix), static_cast<int64_t>(title.size()) * 6);
    if (x > kMargin && x + width > kSheet) x = kMargin, y += line + kTitle, line = 0;
    body += text_at(x, y + 12, title, "class=\"t\"") + matrix_svg(all[k].matrix, x, y + 18);
    line = std::max(line, height_of(all[k].matrix) + 18);
    right = std::max(right, x + width);
    x += width + 2 * kMargin;
  }
  const std::string heading = std::string(statement.name) + ": " + statement.claim;
  right = std::max(right, static_cast<int64_t>(std::max(heading.size(), about.size())) * 8);
  const std::string width = std::to_string(right + kMargin), height = std::to_string(y + line + kMargin);
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + width + "\" height=\"" + height + "\" viewBox=\"0 0 " + width + " " +
         height +
         "\" font-family=\"sans-serif\">\n<style>.t{font-size:11px;fill:#333}.n{font-size:9px;fill:#fff;text-anchor:middle}"
         ".z{font-size:9px;fill:#777}</style>\n"
         "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
         text_at(kMargin, 2 * kMargin, heading, "font-size=\"16\"") + text_at(kMargin, 3 * kMargin + 8, about, "font-size=\"12\"") + body +
         "</svg>\n";
}

}  // namespace based::theory
