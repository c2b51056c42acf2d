#include "based/core/text_table.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "based/core/text.h"

namespace based {

std::string markdown(const std::string& text) {
  const auto is_word = [&](size_t at) { return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool within_word = c == '_' && i > 0 && is_word(i - 1) && is_word(i + 1);  // as in feature_dim, where _ is not emphasis
    if (std::string_view("\\`*_[]<|~&$#").find(c) != std::string_view::npos && !within_word) out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
  return out;
}

std::string latex(const std::string& text) {
  static const std::vector<std::pair<std::string, std::string>> escapes{{"\\", "\\textbackslash{}"},
                                                                        {"~", "\\textasciitilde{}"},
                                                                        {"^", "\\textasciicircum{}"},
                                                                        {"&", "\\&"},
                                                                        {"%", "\\%"},
                                                                        {"$", "\\$"},
                                                                        {"#", "\\#"},
                                                                        {"_", "\\_"},
                                                                        {"{", "\\{"},
                                                                        {"}", "\\}"},
                                                                        {"<", "\\textless{}"},
                                                                        {">", "\\textgreater{}"},
                                                                        {"≤", "$\\le$"},
                                                                        {"±", "$\\pm$"}};
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto found = std::find_if(escapes.begin(), escapes.end(),
                                    [&](const auto& escape) { return text.compare(i, escape.first.size(), escape.first) == 0; });
    if (found != escapes.end()) {
      out += found->second;
      i += found->first.size();
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    out += byte < 0x20 || byte == 0x7f ? ' ' : text[i];
    ++i;
  }
  return out;
}

std::string TextTable::to_markdown() const {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text.append(" ").append(markdown(cell)).append(" |");
    return text + "\n";
  };
  std::string text = line(head) + "|---|";
  for (size_t i = 1; i < head.size(); ++i) text += "---:|";
  text += "\n";
  for (const std::vector<std::string>& row : rows) text += line(row);
  return text;
}

std::string TextTable::to_latex(LatexRules rules) const {
  const bool booktabs = rules == LatexRules::booktabs;
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text;
    for (const std::string& cell : cells) text.append(text.empty() ? "" : " & ").append(latex(cell));
    return text + " \\\\\n";
  };
  std::string text = "\\begin{tabular}{l" + std::string(head.size() - 1, 'r') + "}\n";
  text.append(booktabs ? "\\toprule\n" : "\\hline\n").append(line(head)).append(booktabs ? "\\midrule\n" : "\\hline\n");
  for (const std::vector<std::string>& row : rows) text += line(row);
  return text.append(booktabs ? "\\bottomrule\n" : "\\hline\n").append("\\end{tabular}\n");
}

std::vector<std::string> aligned_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string& line = lines.emplace_back(padded(row[0], widths[0]));
    for (size_t i = 1; i < row.size(); ++i) line.append("  ").append(padded_left(row[i], widths[i]));
  }
  return lines;
}

}  // namespace based
