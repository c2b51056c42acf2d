// Tables of plain text, written for a terminal, for Markdown and for LaTeX.
#pragma once
#include <string>
#include <vector>

namespace based {

// Escapes text for a Markdown document, including cells of tables.
std::string markdown(const std::string& text);
// Escapes text for a LaTeX document.
std::string latex(const std::string& text);

enum class LatexRules { hline, booktabs };

// The first column is left-aligned and the others are right-aligned. Cells are escaped when the table is written.
struct TextTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;

  std::string to_markdown() const;
  std::string to_latex(LatexRules rules) const;
};

// Lines of padded columns, aligned as in a TextTable. All rows have the same number of cells.
std::vector<std::string> aligned_columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace based
