#include "weft/text/jinja_expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "weft/text/jinja_error.h"
#include "weft/text/jinja_filters.h"

namespace weft::jinja {

namespace {
constexpr int32_t kMaxNesting = 100;
constexpr int32_t kMaxDepth = 250;
}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (parser.nesting_ >= kMaxNesting)
    parser.fail(parser.current().place, fmt::format("nested deeper than {} levels", kMaxNesting));
  ++parser.nesting_;
}

void ExpressionParser::fail(Place at, std::string message) const {
  throw TemplateError(name_, std::move(message), at.line, at.column);
}

std::string ExpressionParser::describe(const Lexeme& token) const {
  switch (token.token) {
    case Token::kEnd: return "the end of the template";
    case Token::kVariableEnd:
    case Token::kBlockEnd:
    case Token::kOperator:
    case Token::kName: return "'" + token.text + "'";
    case Token::kString: return "a string";
    case Token::kInteger:
    case Token::kFloat: return "a number";
    default: return "text";
  }
}

const Lexeme& ExpressionParser::expect(Token token, std::string_view what) {
  if (current().token != token) fail(current().place, fmt::format("expected {}, found {}", what, describe(current())));
  return advance();
}
void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail(current().place, fmt::format("expected '{}', found {}", text, describe(current())));
}
void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) fail(current().place, fmt::format("expected '{}', found {}", text, describe(current())));
}

NodePtr ExpressionParser::make(Op op, Place at) const {
  auto node = std::make_unique<Node>();
  node->op = op;
  node->place = at;
  return node;
}

// Long chains of operators nest to the left without recursion in the parser, so the depth is limited on its own.
void ExpressionParser::deepen(Node& node, int32_t below) const {
  node.depth = std::max(node.depth, below + 1);
  if (node.depth > kMaxDepth)
    fail(node.place, fmt::format("the template is more than {} expressions and blocks deep here", kMaxDepth));
}
void ExpressionParser::add_kid(Node& node, NodePtr kid) const {
  if (kid) deepen(node, kid->depth);
  node.kids.push_back(std::move(kid));
}
void ExpressionParser::add_body(Node& node, Body body) const {
  for (const NodePtr& statement : body) deepen(node, statement->depth);
  node.bodies.push_back(std::move(body));
}

void ExpressionParser::check_assignable(const std::string& name, Place at) const {
  static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
    fail(at, fmt::format("'{}' cannot be assigned to", name));
  }
}

NodePtr ExpressionParser::binary(Op op, Place at, NodePtr left, NodePtr right) const {
  NodePtr node = make(op, at);
  add_kid(*node, std::move(left));
  add_kid(*node, std::move(right));
  return node;
}

NodePtr ExpressionParser::expression(bool with_condition) {
  Nesting guard(*this);
  NodePtr left = disjunction();
  while (with_condition && is_name("if")) {
    NodePtr node = make(Op::kCondition, current().place);
    advance();
    add_kid(*node, disjunction());
    add_kid(*node, std::move(left));
    add_kid(*node, skip_name("else") ? expression() : nullptr);
    left = std::move(node);
  }
  return left;
}

NodePtr ExpressionParser::disjunction() {
  NodePtr left = conjunction();
  while (is_name("or")) {
    Place at = advance().place;
    left = binary(Op::kOr, at, std::move(left), conjunction());
  }
  return left;
}

NodePtr ExpressionParser::conjunction() {
  NodePtr left = negation();
  while (is_name("and")) {
    Place at = advance().place;
    left = binary(Op::kAnd, at, std::move(left), negation());
  }
  return left;
}

NodePtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  Nesting guard(*this);
  NodePtr node = make(Op::kNot, current().place);
  advance();
  add_kid(*node, negation());
  return node;
}

NodePtr ExpressionParser::comparison() {
  NodePtr left = sum();
  NodePtr node;
  while (true) {
    Place at = current().place;
    std::string op;
    if (current().token == Token::kOperator) {
      static constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
      if (std::find(std::begin(kOps), std::end(kOps), current().text) != std::end(kOps)) op = current().text;
    } else if (is_name("in")) {
      op = "in";
    } else if (is_name("not") && ahead().token == Token::kName && ahead().text == "in") {
      op = "not in";
      advance();
    }
    if (op.empty()) return node ? std::move(node) : std::move(left);
    advance();
    if (!node) {
      node = make(Op::kCompare, at);
      add_kid(*node, std::move(left));
    }
    node->operators.push_back(op);
    add_kid(*node, sum());
  }
}

NodePtr ExpressionParser::sum() {
  NodePtr left = concatenation();
  while (is_operator("+") || is_operator("-")) {
    Op op = current().text == "+" ? Op::kAdd : Op::kSubtract;
    Place at = advance().place;
    left = binary(op, at, std::move(left), concatenation());
  }
  return left;
}

NodePtr ExpressionParser::concatenation() {
  NodePtr first = product();
  if (!is_operator("~")) return first;
  NodePtr node = make(Op::kConcat, current().place);
  add_kid(*node, std::move(first));
  while (skip_operator("~")) add_kid(*node, product());
  return node;
}

NodePtr ExpressionParser::product() {
  NodePtr left = power();
  while (true) {
    Op op;
    if (is_operator("*"))
      op = Op::kMultiply;
    else if (is_operator("/"))
      op = Op::kDivide;
    else if (is_operator("//"))
      op = Op::kFloorDivide;
    else if (is_operator("%"))
      op = Op::kModulo;
    else
      return left;
    Place at = advance().place;
    left = binary(op, at, std::move(left), power());
  }
}

NodePtr ExpressionParser::power() {
  NodePtr left = unary();
  while (is_operator("**")) {
    Place at = advance().place;
    left = binary(Op::kPower, at, std::move(left), unary());
  }
  return left;
}

NodePtr ExpressionParser::unary(bool with_filters) {
  NodePtr node;
  if (is_operator("-") || is_operator("+")) {
    Nesting guard(*this);
    node = make(current().text == "-" ? Op::kNegative : Op::kPositive, current().place);
    advance();
    add_kid(*node, unary(false));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
}

NodePtr ExpressionParser::primary() {
  const Lexeme& token = current();
  NodePtr node = make(Op::kConst, token.place);
  switch (token.token) {
    case Token::kName:
      if (token.text == "true" || token.text == "True")
        node->value = Value::boolean(true);
      else if (token.text == "false" || token.text == "False")
        node->value = Value::boolean(false);
      else if (token.text != "none" && token.text != "None") {
        node->op = Op::kName;
        node->text = token.text;
        for (MacroParts* macro : macros_) {
          macro->uses_varargs |= token.text == "varargs";
          macro->uses_kwargs |= token.text == "kwargs";
          macro->uses_caller |= token.text == "caller";
        }
      }
      advance();
      return node;
    case Token::kString: {
      std::string text;
      while (current().token == Token::kString) text += advance().text;
      node->value = Value::string(std::move(text));
      return node;
    }
    case Token::kInteger:
      node->value = Value::digits(token.text);
      advance();
      return node;
    case Token::kFloat:
      node->value = Value::real(std::strtod(token.text.c_str(), nullptr));
      advance();
      return node;
    default:
      if (is_operator("(")) return parenthesised();
      if (is_operator("[")) return list();
      if (is_operator("{")) return dict();
      fail(token.place, fmt::format("expected an expression, found {}", describe(token)));
  }
}

bool ExpressionParser::tuple_ends() const {
  return current().token == Token::kVariableEnd || current().token == Token::kBlockEnd || is_operator(")") || is_operator("=") ||
         is_name("in") || is_name("recursive");
}

NodePtr ExpressionParser::tuple_or_expression(bool with_condition) {
  Place at = current().place;
  NodePtr first = expression(with_condition);
  if (!is_operator(",")) return first;
  NodePtr node = make(Op::kTuple, at);
  add_kid(*node, std::move(first));
  while (skip_operator(",") && !tuple_ends()) add_kid(*node, expression(with_condition));
  return node;
}

NodePtr ExpressionParser::parenthesised() {
  Place at = current().place;
  advance();
  if (skip_operator(")")) return make(Op::kTuple, at);
  NodePtr node = tuple_or_expression(true);
  expect_operator(")");
  return node;
}

NodePtr ExpressionParser::list() {
  NodePtr node = make(Op::kList, current().place);
  advance();
  while (!is_operator("]")) {
    if (!node->kids.empty()) {
      expect_operator(",");
      if (is_operator("]")) break;
    }
    add_kid(*node, expression());
  }
  advance();
  return node;
}

NodePtr ExpressionParser::dict() {
  NodePtr node = make(Op::kDict, current().place);
  advance();
  while (!is_operator("}")) {
    if (!node->kids.empty()) {
      expect_operator(",");
      if (is_operator("}")) break;
    }
    add_kid(*node, expression());
    expect_operator(":");
    add_kid(*node, expression());
  }
  advance();
  return node;
}

NodePtr ExpressionParser::postfix(NodePtr node) {
  while (true) {
    Place at = current().place;
    if (skip_operator(".")) {
      NodePtr next;
      if (current().token == Token::kName) {
        next = make(Op::kAttribute, at);
        next->text = advance().text;
        add_kid(*next, std::move(node));
      } else if (current().token == Token::kInteger) {
        NodePtr index = make(Op::kConst, current().place);
        index->value = Value::digits(advance().text);
        next = binary(Op::kItem, at, std::move(node), std::move(index));
      } else {
        fail(current().place, fmt::format("expected a name or a number behind '.', found {}", describe(current())));
      }
      node = std::move(next);
    } else if (skip_operator("[")) {
      NodePtr index = subscript();
      if (is_operator(",")) {
        NodePtr tuple = make(Op::kTuple, at);
        add_kid(*tuple, std::move(index));
        while (skip_operator(",")) add_kid(*tuple, subscript());
        for (const NodePtr& part : tuple->kids)
          if (part->op == Op::kSlice) fail(part->place, "a slice among several indices: no list, string or dict takes one");
        index = std::move(tuple);
      }
      expect_operator("]");
      node = binary(Op::kItem, at, std::move(node), std::move(index));
    } else if (is_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::subscript() {
  Place at = current().place;
  NodePtr start;
  if (!is_operator(":")) {
    start = expression();
    if (!is_operator(":")) return start;
  }
  NodePtr node = make(Op::kSlice, at);
  add_kid(*node, std::move(start));
  auto part = [&] { return is_operator(":") || is_operator("]") || is_operator(",") ? nullptr : expression(); };
  advance();
  add_kid(*node, part());
  add_kid(*node, skip_operator(":") ? part() : nullptr);
  return node;
}

NodePtr ExpressionParser::call(NodePtr callee) {
  NodePtr node = make(Op::kCall, current().place);
  node->call = std::make_unique<Call>();
  add_kid(*node, std::move(callee));
  arguments(*node);
  return node;
}

void ExpressionParser::arguments(Node& node) {
  Call& out = *node.call;
  expect_operator("(");
  auto value = [&] {
    NodePtr v = expression();
    deepen(node, v->depth);
    return v;
  };
  for (bool first = true; !is_operator(")"); first = false) {
    if (!first) {
      expect_operator(",");
      if (is_operator(")")) break;
    }
    Place at = current().place;
    bool in_order = true;
    if (skip_operator("*")) {
      in_order = !out.spread && !out.spread_named;
      out.spread = value();
    } else if (skip_operator("**")) {
      in_order = !out.spread_named;
      out.spread_named = value();
    } else if (current().token == Token::kName && ahead().token == Token::kOperator && ahead().text == "=") {
      in_order = !out.spread_named;
      std::string key = advance().text;
      advance();
      for (const auto& [other, unused] : out.named) {
        if (other == key) fail(at, fmt::format("the argument '{}' is there twice", key));
      }
      out.named.emplace_back(std::move(key), value());
    } else {
      in_order = !out.spread && !out.spread_named && out.named.empty();
      out.positional.push_back(value());
    }
    if (!in_order) fail(at, "arguments stand in the wrong order");
  }
  expect_operator(")");
}

NodePtr ExpressionParser::filters_and_tests(NodePtr node) {
  while (true) {
    if (skip_operator("|"))
      node = filter(std::move(node));
    else if (skip_name("is"))
      node = test(std::move(node));
    else if (is_operator("("))
      node = call(std::move(node));
    else
      return node;
  }
}

NodePtr ExpressionParser::filters(NodePtr input, bool inline_first) {
  while (inline_first || skip_operator("|")) {
    input = filter(std::move(input));
    inline_first = false;
  }
  return input;
}

NodePtr ExpressionParser::filter(NodePtr input) {
  NodePtr node = make(Op::kFilter, current().place);
  node->call = std::make_unique<Call>();
  node->text = expect(Token::kName, "the name of a filter").text;
  while (skip_operator(".")) node->text += "." + expect(Token::kName, "the name of a filter").text;
  node->call->filter = find_filter(node->text);
  if (node->call->filter == nullptr) {
    std::string why = is_unsupported_filter(node->text) ? "the filter '{}' is not supported" : "no filter named '{}'";
    fail(node->place, fmt::format(fmt::runtime(why), node->text));
  }
  add_kid(*node, std::move(input));
  if (is_operator("(")) arguments(*node);
  return node;
}

NodePtr ExpressionParser::test(NodePtr input) {
  Place at = current().place;
  bool negated = skip_name("not");
  NodePtr node = make(Op::kTest, current().place);
  node->call = std::make_unique<Call>();
  node->text = expect(Token::kName, "the name of a test").text;
  while (skip_operator(".")) node->text += "." + expect(Token::kName, "the name of a test").text;
  node->call->test = find_test(node->text);
  if (node->call->test == nullptr) fail(node->place, fmt::format("no test named '{}'", node->text));
  add_kid(*node, std::move(input));
  bool takes_value = current().token == Token::kName || current().token == Token::kString || current().token == Token::kInteger ||
                     current().token == Token::kFloat || is_operator("[") || is_operator("{");
  if (is_operator("(")) {
    arguments(*node);
  } else if (takes_value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) fail(current().place, "tests cannot be chained with 'is'");
    Nesting guard(*this);
    NodePtr value = postfix(primary());
    deepen(*node, value->depth);
    node->call->positional.push_back(std::move(value));
  }
  if (!negated) return node;
  NodePtr inverse = make(Op::kNot, at);
  add_kid(*inverse, std::move(node));
  return inverse;
}

NodePtr ExpressionParser::target(bool fields) {
  Nesting guard(*this);
  Place at = current().place;
  NodePtr tuple;
  while (true) {
    NodePtr node;
    if (skip_operator("(")) {
      node = target(fields);
      expect_operator(")");
    } else {
      node = make(Op::kName, current().place);
      node->text = expect(Token::kName, "a name to assign to").text;
      check_assignable(node->text, node->place);
      if (fields && skip_operator(".")) {
        node->op = Op::kNamespaceField;
        node->operators.push_back(expect(Token::kName, "the name of a field").text);
      }
    }
    bool more = is_operator(",");
    if (!tuple && !more) return node;
    if (!tuple) tuple = make(Op::kTuple, at);
    add_kid(*tuple, std::move(node));
    if (!more) return tuple;
    advance();
    if (tuple_ends()) return tuple;
  }
}

}  // namespace weft::jinja
