#pragma once
// Values of the template language: Python's, as far as templates need them. Values are immutable (the sandbox allows no
// mutation) except namespaces, loops and one-shot iterators, which live no longer than one rendering. Containers know how deep
// they nest and how much they hold, so no walk over a value can run away. Operations that Python refuses throw RawError; the
// evaluator adds the place in the template.

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft::jinja {

// A failed operation, without place.
class RawError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr int32_t kMaxValueDepth = 100;
constexpr int64_t kMaxValueWeight = int64_t{1} << 26;  // values and bytes of text, shared ones counted each time

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // outside of 64 bits: sign and decimal digits
  kFloat,
  kString,
  kBytes,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,      // keys(), values(), items() of a dict
  kIterator,  // one-shot: what generators and reversed() give
  kNamespace,
  kLoop,
  kCallable,
};

class Value;
class Interpreter;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;
using Values = std::vector<Value>;

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Value {
 public:
  Value() : kind_(Kind::kNone) {}
  static Value undefined(std::string why);
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value wide_integer(__int128 i);
  static Value digits(std::string decimal);  // any decimal integer literal
  static Value real(double d);
  static Value string(std::string text, bool markup = false);
  static Value bytes(std::string text);
  static Value list(Values items);
  static Value tuple(Values items, bool group = false);
  static Value iterator(Values items);
  static Value view(const char* name, Values items);
  static Value range(int64_t start, int64_t stop, int64_t step, Values items);
  static Value dict(std::shared_ptr<const Dict> dict);
  static Value name_space(std::shared_ptr<Namespace> space);
  static Value loop(std::shared_ptr<Loop> loop);
  static Value callable(std::shared_ptr<const Callable> callable);
  static Value function(std::string name, std::function<Value(Interpreter&, Args&)> call);
  static Value method(std::string name, const Value& self, std::function<Value(Interpreter&, Args&)> call);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_number() const { return kind_ == Kind::kBool || is_integer() || kind_ == Kind::kFloat; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBigInt; }
  // A string that `escape` or `safe` marked; a tuple that `groupby` made.
  bool flag() const { return flag_; }

  bool as_bool() const { return bits_.b; }
  int64_t as_int() const { return kind_ == Kind::kBool ? bits_.b : bits_.i; }
  double as_float() const { return bits_.d; }
  const std::string& text() const;  // string, bytes, digits of a big integer, reason of an undefined, name of a view
  const Values& items() const;      // list, tuple, range, view
  const Dict& as_dict() const;
  Namespace& as_namespace() const;
  Loop& as_loop() const;
  const Callable& as_callable() const;
  // What an iterator has left; it is spent afterwards. take_one gives false at the end.
  Values take_rest() const;
  bool take_one(Value& out) const;
  const void* identity() const { return object_.get(); }
  int32_t depth() const;
  int64_t weight() const;

 private:
  Kind kind_;
  bool flag_ = false;
  union {
    bool b;
    int64_t i;
    double d;
  } bits_{};
  std::shared_ptr<const void> object_;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  int32_t depth = 1;
  int64_t weight = 1;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // only while it is built

 private:
  std::unordered_map<std::string, size_t> by_text_;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> fields;
  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

// A function, a bound method or a macro. Attributes are what templates may read of it (a macro's name, arguments...).
struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Args&)> call;
  std::vector<std::pair<std::string, Value>> attributes;
  int32_t depth = 0;  // of the value that a method is bound to
};

// State of a running for loop.
struct Loop {
  Values items;
  int64_t index = 0;
  int64_t depth = 0;        // of nested recursive loops
  int32_t value_depth = 0;  // as Value::depth
  bool has_changed = false;
  Value changed;
  std::function<Value(Interpreter&, const Value&)> recurse;  // empty unless the loop is recursive
};

void check_size(int32_t depth, int64_t weight);  // throws beyond the limits of this header
std::string type_name(const Value& value);       // Python's: str, int, NoneType, dict...
bool truth(const Value& value);
std::string to_text(const Value& value);  // str()
std::string to_repr(const Value& value);  // repr()
bool equal(const Value& a, const Value& b);
// <0, 0, >0; throws for types that have no order. `unordered` is set for NaN.
int compare(const Value& a, const Value& b, bool& unordered, const char* op);
bool less(const Value& a, const Value& b);
void check_hashable(const Value& value);
// len(); throws for what has none.
int64_t length(const Value& value);
bool is_iterable(const Value& value);
bool is_sequence(const Value& value);
// All items (a one-shot iterator is spent); throws for what cannot be iterated.
Values iterate(const Value& value);
bool contains(const Value& container, const Value& item);
double number(const Value& value);  // of anything is_number

}  // namespace weft::jinja
