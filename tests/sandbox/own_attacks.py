# ruff: noqa: E501
"""Attacks on the language layer beyond the shared corpus: name -> (outcomes, lines).

Lines before `---` stand at module level, those after it are the body of the function. What would
be a success returns the key `pwned`.
"""

from __future__ import annotations

LANGUAGE: dict[str, tuple[str, str]] = {
    "abs_obj": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': abs(ctx)}"""),
    "annotation_exec": ("ok", """
x: open('/etc/passwd') = 1
return {'actions': []}"""),
    "assert_msg": ("RUNTIME_DENIED", """
assert 1 == 2, ctx
return {'actions': [], 'pwned': 1}"""),
    "bool_int_key": ("BAD_RESULT", """
return {'actions': [], 'state': {True: 1}}"""),
    "bound_method_escape": ("COMPILE_DENIED", """
f = [].append
return {'actions': [], 'pwned': str(f.__self__)}"""),
    "callable_str_join": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': ''.join(x for x in [len])}"""),
    "chr_big": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': chr(10**9)}"""),
    "chr_surrogate_log": ("ok", """
print(chr(0xd800)); return {'actions': []}"""),
    "chr_surrogate_note": ("BAD_RESULT", """
return {'actions': [], 'note': chr(0xdc80)}"""),
    "class_getitem": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': str(list[int])}"""),
    "compare_chain_in": ("COMPILE_DENIED", """
return {'actions': [], 'pwned': 1 in [1] in [[1]]}"""),
    "comprehension_shadow_step": ("COMPILE_DENIED", """
return {'actions': [], 'pwned': [1 for _step_ in range(3)]}"""),
    "const_fold_bomb": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': 2 ** 60000 ** 2}"""),
    "const_fold_tuple": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': ((1,) * 4096) * 4096}"""),
    "counter_arith": ("ok", """
from collections import Counter
---
return {'actions': [], 'note': str(Counter('aab') + Counter('b') - Counter('a'))}"""),
    "counter_elements": ("RUNTIME_DENIED", """
from collections import Counter
---
c = Counter(a=10**12)
return {'actions': [], 'pwned': len(list(c.elements()))}"""),
    "counter_getitem": ("RUNTIME_DENIED", """
from collections import Counter
---
return {'actions': [], 'pwned': str(Counter[int])}"""),
    "counter_mul": ("RUNTIME_DENIED", """
from collections import Counter
---
c = Counter('a' * 10)
return {'actions': [], 'pwned': str(c * 3)}"""),
    "ctx_mutate_class": ("BAD_RESULT", """
ctx['x'] = ctx
return {'actions': [], 'state': ctx}"""),
    "ctx_setattr": ("COMPILE_DENIED", """
ctx.x = 1"""),
    "datetime_astz_none": ("RUNTIME_DENIED", """
from datetime import datetime, timezone
---
return {'actions': [], 'pwned': str(datetime(2020,1,1,tzinfo=timezone.utc).astimezone(None))}"""),
    "datetime_combine_tz": ("RUNTIME_DENIED", """
from datetime import datetime, date, time
---
return {'actions': [], 'pwned': str(datetime.combine(date(2020,1,1), time(1), ctx))}"""),
    "datetime_fromiso_nonstr": ("RUNTIME_DENIED", """
from datetime import datetime
---
return {'actions': [], 'pwned': str(datetime.fromisoformat(ctx))}"""),
    "datetime_local_fold": ("RUNTIME_DENIED", """
from datetime import datetime
---
return {'actions': [], 'pwned': datetime(2020,1,1).timestamp()}"""),
    "datetime_min": ("RUNTIME_DENIED", """
from datetime import datetime, timedelta, timezone
---
return {'actions': [], 'pwned': str(datetime(1,1,1,tzinfo=timezone.utc) - timedelta(days=999999999))}"""),
    "datetime_pickle_ctor": ("ok", """
from datetime import datetime
---
return {'actions': [], 'note': str(datetime(chr(7)+chr(228)+chr(1)*2+chr(0)*6))}"""),
    "datetime_replace_tz": ("RUNTIME_DENIED", """
from datetime import datetime
---
return {'actions': [], 'pwned': str(datetime(2020,1,1).replace(tzinfo=len))}"""),
    "datetime_strftime_surr": ("RUNTIME_DENIED", """
from datetime import datetime
---
return {'actions': [], 'pwned': datetime(2020,1,1).strftime(chr(0xd800))}"""),
    "datetime_tz_bomb": ("RUNTIME_DENIED", """
from datetime import timezone, timedelta
---
return {'actions': [], 'pwned': str(timezone(timedelta(hours=1), 'a' * 4000000))}"""),
    "deep_closure_chain": ("RUNTIME_DENIED", """
f = lambda x: x
def wrap(h):
    return lambda x: h(x)
for i in range(100000):
    f = wrap(f)
return {'actions': [], 'pwned': f(1)}"""),
    "deep_dealloc": ("ok", """
a = []
for i in range(300000):
    a = [a]
a = None
return {'actions': []}"""),
    "deep_defaultdict_repr": ("RUNTIME_DENIED", """
from collections import defaultdict
---
d = defaultdict(list)
d['x'] = d
return {'actions': [], 'pwned': repr(d)}"""),
    "deep_eq": ("RUNTIME_DENIED CRASH", """
a, b = [], []
for i in range(100000):
    a = [a]
    b = [b]
return {'actions': [], 'pwned': a == b}"""),
    "deep_gen_chain": ("CRASH RUNTIME_DENIED", """
g = (x for x in range(1))
def wrap(h):
    return (x for x in h)
for i in range(100000):
    g = wrap(g)
return {'actions': [], 'pwned': list(g)}"""),
    "deep_tuple_hash": ("CRASH RUNTIME_DENIED", """
a = ()
for i in range(200000):
    a = (a,)
return {'actions': [], 'pwned': {a: 1}}"""),
    "deep_tuple_lt": ("RUNTIME_DENIED CRASH", """
a, b = (), ()
for i in range(200000):
    a = (a,)
    b = (b,)
return {'actions': [], 'pwned': a < b}"""),
    "def_annotation_exec": ("ok", """
def g(x: open('/x')) -> 1/0:
    return x
---
return {'actions': [], 'note': str(g(1))}"""),
    "defaultdict_factory_loop": ("RUNTIME_DENIED", """
from collections import defaultdict
---
d = defaultdict(lambda: [d['a'] for i in range(3)])
return {'actions': [], 'pwned': d['a']}"""),
    "defaultdict_repr_factory": ("RUNTIME_DENIED", """
from collections import defaultdict
---
d = defaultdict(lambda: 1)
return {'actions': [], 'pwned': str(d)}"""),
    "del_builtin": ("RUNTIME_DENIED", """
del len"""),
    "deque_add": ("RUNTIME_DENIED", """
from collections import deque
---
d = deque(range(900000))
xs = []
for i in range(1000):
    d = d + d
return {'actions': [], 'pwned': 1}"""),
    "deque_mul": ("RUNTIME_DENIED", """
from collections import deque
---
d = deque([1]*1000)
d = d * 10**9
return {'actions': [], 'pwned': 1}"""),
    "deque_mutate_iter": ("RUNTIME_DENIED", """
from collections import deque
---
d = deque(range(100))
for k in d:
    d.append(k)
return {'actions': [], 'pwned': 1}"""),
    "deque_rotate_huge": ("ok", """
from collections import deque
---
d = deque(range(3))
d.rotate(10**18)
return {'actions': []}"""),
    "dict_class_getitem": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': str(dict[str, int])}"""),
    "dict_fromkeys_big": ("STEP_LIMIT", """
return {'actions': [], 'pwned': len(dict.fromkeys(range(9000000)))}"""),
    "dict_view_isdisjoint": ("RUNTIME_DENIED", """
d = {'a': 1}
return {'actions': [], 'pwned': str(d.keys().isdisjoint('b'))}"""),
    "dict_view_mapping": ("RUNTIME_DENIED", """
d = {'a': 1}
return {'actions': [], 'pwned': str(d.keys().mapping)}"""),
    "dict_view_ops": ("ok", """
d = {'a': 1}
return {'actions': [], 'note': str(d.keys() & {'a'})}"""),
    "eq_exponential": ("TIMEOUT", """
a = [1]
b = [1]
for i in range(60):
    a = [a, a]
    b = [b, b]
return {'actions': [], 'pwned': a == b}"""),
    "exc_arg_cycle": ("RUNTIME_DENIED", """
a = []
a.append(a)
raise ValueError(a)"""),
    "exc_arg_deep": ("RUNTIME_DENIED", """
a = []
for i in range(100000):
    a = [a]
raise ValueError(a)"""),
    "exc_arg_fn": ("RUNTIME_DENIED", """
raise ValueError(len)"""),
    "exc_str_huge": ("RUNTIME_DENIED", """
raise ValueError('a' * 4000000)"""),
    "except_args": ("RUNTIME_DENIED", """
try:
    {}['x']
except KeyError as e:
    return {'actions': [], 'pwned': str(e.args)}"""),
    "except_expr_kind": ("RUNTIME_DENIED", """
try:
    1/0
except len:
    return {'actions': [], 'pwned': 1}"""),
    "except_expr_tuple_mut": ("ok", """
try:
    1/0
except (ZeroDivisionError, [ValueError][0]) as e:
    return {'actions': [], 'note': str(e)}"""),
    "except_group_attr": ("COMPILE_DENIED", """
try:
    1/0
except ZeroDivisionError as e:
    return {'actions': [], 'pwned': str(e.__traceback__)}"""),
    "except_name_reuse": ("RUNTIME_DENIED", """
try:
    1/0
except Exception as e:
    pass
return {'actions': [], 'pwned': str(e)}"""),
    "exception_as_factory": ("COMPILE_DENIED", """
from collections import defaultdict
---
d = defaultdict(ValueError)
x = d['a']
return {'actions': [], 'pwned': str(x.__class__)}"""),
    "exception_class_call_attr": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': str(ValueError.mro())}"""),
    "facade_members": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': str(math.members)}"""),
    "facade_module_attr": ("RUNTIME_DENIED", """
import statistics
---
return {'actions': [], 'pwned': statistics.sys}"""),
    "finally_return": ("RUNTIME_DENIED", """
try:
    return {'x': open('/etc/passwd')}
finally:
    return {'actions': []}"""),
    "float_huge_text": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': float('1' * 4000000)}"""),
    "float_int_overflow": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': float(1 << 60000)}"""),
    "float_pow_int": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': (2.0) ** 100000}"""),
    "fn_in_dict_repr": ("RUNTIME_DENIED", """
d = {'f': [len, lambda: 1]}
return {'actions': [], 'pwned': f'{d}'}"""),
    "format_builtin_obj": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': format(ctx, 's')}"""),
    "format_c_huge": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': f'{10**9:c}'}"""),
    "from_json_decoder": ("COMPILE_DENIED", """
from json import decoder
---
return {'actions': [], 'pwned': 1}"""),
    "fstring_nested_twice": ("RUNTIME_DENIED", """
x = 5
w = '9'*5
return {'actions': [], 'pwned': f'{x:>{w}}'}"""),
    "fstring_precision_bomb": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': f'{1.5:.{10**7}f}'}"""),
    "fstring_spec_width_bomb": ("RUNTIME_DENIED", """
x = 5
w = 10**8
return {'actions': [], 'pwned': f'{x:{w}}'}"""),
    "fstring_unicode_digits": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': f'{5:>{chr(0x661)*9}}'}"""),
    "fullwidth_dunder": ("COMPILE_DENIED", """
return {'actions': [], 'pwned': str(ctx.__ｃlass__)}"""),
    "genexp_close": ("RUNTIME_DENIED", """
g = (x for x in [1])
g.close()
return {'actions': [], 'pwned': 1}"""),
    "genexp_gi": ("COMPILE_DENIED", """
g = (x for x in [1])
return {'actions': [], 'pwned': str(g.gi_frame)}"""),
    "genexp_return": ("BAD_RESULT", """
return (x for x in [1])"""),
    "genexp_send": ("RUNTIME_DENIED", """
g = (x for x in [1])
return {'actions': [], 'pwned': g.send(None)}"""),
    "genexp_throw": ("RUNTIME_DENIED", """
g = (x for x in [1])
return {'actions': [], 'pwned': g.throw(ValueError)}"""),
    "hash_collision_set_c": ("TIMEOUT", """
m = 2**61 - 1
xs = [i * m for i in range(200000)]
return {'actions': [], 'note': str(len(set(xs)))}"""),
    "hash_exponential": ("TIMEOUT", """
a = (1,)
for i in range(60):
    a = (a, a)
return {'actions': [], 'pwned': {a: 1}}"""),
    "import_as_guard": ("COMPILE_DENIED", """
import math as _getattr_
---
return {'actions': [], 'pwned': 1}"""),
    "import_dotted": ("COMPILE_DENIED", """
import collections.abc
---
return {'actions': [], 'pwned': 1}"""),
    "import_future_braces": ("COMPILE_DENIED", """
from __future__ import braces
---
return {'actions': [], 'pwned': 1}"""),
    "import_relative": ("COMPILE_DENIED", """
from . import worker
---
return {'actions': [], 'pwned': 1}"""),
    "int_2_53": ("BAD_RESULT", """
return {'actions': [], 'state': 2**53 + 1}"""),
    "int_base_obj": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': int('10', ctx)}"""),
    "int_to_str_huge": ("RUNTIME_DENIED", """
a = 1 << 65000
for i in range(100000):
    s = str(a)
return {'actions': [], 'pwned': 1}"""),
    "isinstance_nested_tuple": ("RUNTIME_DENIED", """
t = (int,)
for i in range(100000):
    t = (t,)
return {'actions': [], 'pwned': isinstance(1, t)}"""),
    "json_cls": ("RUNTIME_DENIED", """
import json
---
return {'actions': [], 'pwned': json.dumps(1, cls=dict)}"""),
    "json_deep_loads": ("RUNTIME_DENIED", """
import json
---
return {'actions': [], 'pwned': json.loads('[' * 100000)}"""),
    "json_deque": ("RUNTIME_DENIED", """
import json
from collections import deque
---
return {'actions': [], 'pwned': json.dumps(deque([1]))}"""),
    "json_dumps_exponential": ("RUNTIME_DENIED", """
import json
---
a = [1]
for i in range(60):
    a = [a, a]
return {'actions': [], 'pwned': json.dumps(a)}"""),
    "json_indent_str": ("RUNTIME_DENIED", """
import json
---
return {'actions': [], 'pwned': json.dumps([1], indent='a'*1000000)}"""),
    "json_inf_int": ("RUNTIME_DENIED", """
import json
---
return {'actions': [], 'pwned': json.loads('1' * 4000000)}"""),
    "json_key_fn": ("RUNTIME_DENIED", """
import json
---
return {'actions': [], 'pwned': json.dumps({len: 1})}"""),
    "json_nan": ("BAD_RESULT", """
import json
---
return {'actions': [], 'state': json.loads('NaN')}"""),
    "jsondecode_doc": ("RUNTIME_DENIED", """
import json
---
try:
    json.loads('{')
except json.JSONDecodeError as e:
    return {'actions': [], 'pwned': str(e.doc)}"""),
    "key_surrogate": ("BAD_RESULT", """
return {'actions': [], 'state': {chr(0xd800): 1}}"""),
    "kind_make": ("COMPILE_DENIED", """
return {'actions': [], 'pwned': str(dict._make)}"""),
    "kind_members": ("RUNTIME_DENIED", """
x = dict
return {'actions': [], 'pwned': str(x.members)}"""),
    "kind_types": ("RUNTIME_DENIED", """
x = int
return {'actions': [], 'pwned': x.types}"""),
    "kwargs_into_facade": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': math.isclose(1, 1, **{'rel_tol': len})}"""),
    "lambda_default_guard": ("COMPILE_DENIED", """
f = lambda x, _getattr_=None: x
return {'actions': [], 'pwned': 1}"""),
    "lambda_star_bomb": ("STEP_LIMIT", """
f = lambda *a: f(*a, *a)
return {'actions': [], 'pwned': f(1)}"""),
    "list_append_self": ("BAD_RESULT", """
xs = []
xs.append(xs)
return {'actions': xs}"""),
    "list_iadd_str": ("STEP_LIMIT", """
xs = []
for i in range(300):
    xs += 'a' * 4000000
return {'actions': [], 'pwned': len(xs)}"""),
    "list_index_cpu": ("RUNTIME_DENIED", """
xs = ['a'*4000000 + str(i) for i in range(20)]
for i in range(200000):
    xs.count('a'*10)
return {'actions': []}"""),
    "log_ansi": ("ok", """
print(chr(27) + '[31m' + chr(0x202e)); return {'actions': []}"""),
    "math_factorial_bool": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': math.factorial(True)}"""),
    "math_nextafter_steps": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': str(math.nextafter(1.0, 2.0, steps=10**30))}"""),
    "math_perm_neg": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': math.perm(-1)}"""),
    "math_prod_growth": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': math.prod([1 << 60000] * 10)}"""),
    "math_trunc_obj": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'pwned': math.trunc(ctx)}"""),
    "max_range_cpu": ("STEP_LIMIT", """
t = 0
for i in range(100):
    t += max(range(10000000))
return {'actions': [], 'pwned': t}"""),
    "module_builtin_override": ("ok", """
def len(x):
    return 5
---
return {'actions': [], 'note': str(len([]))}"""),
    "module_import_shadow": ("ok", """
import math as len
---
return {'actions': [], 'note': str(len.pi)}"""),
    "module_level_lambda_loop": ("RUNTIME_DENIED", """
F = (lambda f: f(f))(lambda f: f(f))
---
return {'actions': [], 'pwned': 1}"""),
    "mul_in_place_str": ("RUNTIME_DENIED", """
s = 'a' * 1000
s *= 10**9
return {'actions': [], 'pwned': 1}"""),
    "next_default_fn": ("BAD_RESULT", """
return {'actions': [], 'pwned': next((x for x in []), open)}"""),
    "ord_bytes": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': ord(ctx)}"""),
    "ordered_move": ("RUNTIME_DENIED", """
from collections import OrderedDict
---
d = OrderedDict([('a', 1), ('b', 2)])
for k in d:
    d.move_to_end(k)
return {'actions': []}"""),
    "ordered_mutate_iter": ("RUNTIME_DENIED", """
from collections import OrderedDict
---
d = OrderedDict([(i, i) for i in range(1000)])
xs = []
for k in d:
    d.pop(k)
    d[k] = 1
    xs.append(k)
return {'actions': [], 'pwned': len(xs)}"""),
    "ordered_popitem_iter": ("RUNTIME_DENIED", """
from collections import OrderedDict
---
d = OrderedDict([(i, i) for i in range(1000)])
g = (d.clear() for k in d)
return {'actions': [], 'note': str(len(list(g)))}"""),
    "percent_mapping_key_paren": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': '%((a))999999999d' % {'(a)': 1}}"""),
    "percent_precision_star": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': '%.*f' % (10**8, 1.0)}"""),
    "percent_r_obj": ("RUNTIME_DENIED", """
import math
---
return {'actions': [], 'note': '%r' % math.sin}"""),
    "percent_s_dictval": ("RUNTIME_DENIED", """
return {'actions': [], 'note': '%(a)s' % {'a': len}}"""),
    "percent_unicode_digits": ("RUNTIME_DENIED", """
w = '%' + chr(0x0661)*8 + 'd'
return {'actions': [], 'pwned': w % 5}"""),
    "print_end_huge": ("STEP_LIMIT", """
for i in range(100000):
    print('', end='a' * 4000000)
return {'actions': [], 'pwned': 1}"""),
    "print_file": ("RUNTIME_DENIED", """
print('x', file=ctx)"""),
    "print_sep_huge": ("RUNTIME_DENIED", """
print(*range(100000), sep='a' * 4000000)
return {'actions': [], 'pwned': 1}"""),
    "raise_class_from": ("RUNTIME_DENIED", """
raise ValueError('a') from KeyError('b')"""),
    "raise_non_exc": ("RUNTIME_DENIED", """
raise len"""),
    "raise_stopiter_gen": ("RUNTIME_DENIED", """
def g():
    raise StopIteration
return {'actions': [], 'pwned': [x for x in (g() for i in [1])]}"""),
    "range_list": ("STEP_LIMIT", """
return {'actions': [], 'pwned': len(list(range(10000000)))}"""),
    "range_neg_bomb": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': list(range(10**20, -10**20, -10**13))}"""),
    "recursion_defaultdict": ("RUNTIME_DENIED", """
from collections import defaultdict
---
d = defaultdict(lambda: d[len(d)])
return {'actions': [], 'pwned': d[0]}"""),
    "recursion_lambda": ("RUNTIME_DENIED", """
f = lambda f: f(f)
return {'actions': [], 'pwned': f(f)}"""),
    "recursion_map": ("RUNTIME_DENIED", """
def k(x):
    return map(k, [1])
---
return {'actions': [], 'pwned': k(1)}"""),
    "recursion_max_key": ("RUNTIME_DENIED", """
def k(x):
    return max([1, 2], key=k)
---
return {'actions': [], 'pwned': k(1)}"""),
    "recursion_sort_key": ("RUNTIME_DENIED", """
def k(x):
    return sorted([1, 2], key=k)
---
return {'actions': [], 'pwned': k(1)}"""),
    "result_exponential": ("BAD_RESULT", """
a = [1]
for i in range(60):
    a = [a, a]
return {'actions': [], 'state': a}"""),
    "round_bool_digits": ("RUNTIME_DENIED", """
return {'actions': [], 'note': str(round(1.5, True))}"""),
    "round_int_neg": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': round(5, -10**9)}"""),
    "set_in_set": ("RUNTIME_DENIED", """
s = {1}
s.add(s)"""),
    "set_range": ("STEP_LIMIT", """
return {'actions': [], 'pwned': len(set(range(9000000)))}"""),
    "slice_obj": ("RUNTIME_DENIED", """
xs = [1,2,3]
return {'actions': [], 'pwned': xs[slice(1,2)]}"""),
    "slice_with_index_obj": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': [1,2][ctx:]}"""),
    "sort_key_clears": ("ok", """
xs = [3,1,2]*100
def k(v):
    xs.clear()
    return v
try:
    xs.sort(key=k)
except ValueError:
    pass
return {'actions': []}"""),
    "sort_key_mutates": ("RUNTIME_DENIED", """
xs = [3,1,2]
def k(v):
    xs.append(v)
    return v
xs.sort(key=k)
return {'actions': [], 'pwned': xs}"""),
    "sorted_key_generator_reenter": ("RUNTIME_DENIED", """
g = (next(g) for i in range(3))
return {'actions': [], 'pwned': list(g)}"""),
    "star_args_object": ("RUNTIME_DENIED", """
def g(*a):
    return a
---
return {'actions': [], 'pwned': g(*len)}"""),
    "star_range": ("STEP_LIMIT", """
return {'actions': [], 'pwned': len([*range(10000000)])}"""),
    "starstar_guard_kwarg": ("ok", """
def g(**k):
    return k
---
return {'actions': [], 'note': str(len(g(**{'_getattr_': 1})))}"""),
    "starstar_nonmapping": ("RUNTIME_DENIED", """
def g(**a):
    return a
---
return {'actions': [], 'pwned': g(**[('a',1)])}"""),
    "statistics_correlation_kw": ("RUNTIME_DENIED", """
import statistics
---
return {'actions': [], 'pwned': statistics.correlation([1,2],[2,3], method=len)}"""),
    "statistics_fraction_cpu": ("STEP_LIMIT", """
import statistics
---
xs = [1.1 ** i for i in range(5000)]
for i in range(1000):
    statistics.stdev(xs)
return {'actions': [], 'pwned': 1}"""),
    "statistics_mode_fn": ("RUNTIME_DENIED", """
import statistics
---
return {'actions': [], 'pwned': statistics.mode([len, len])}"""),
    "statistics_quantiles_n": ("RUNTIME_DENIED", """
import statistics
---
return {'actions': [], 'pwned': len(statistics.quantiles([1,2,3], n=10**9))}"""),
    "stopiteration_value": ("RUNTIME_DENIED", """
try:
    next((x for x in []))
except StopIteration as e:
    return {'actions': [], 'pwned': str(e.value)}"""),
    "str_find_quadratic": ("TIMEOUT", """
s = 'a' * 2000000
p = 'a' * 1000000 + 'b'
t = 0
for i in range(10000):
    t += s.find(p)
return {'actions': [], 'pwned': t}"""),
    "str_join_mem": ("STEP_LIMIT", """
s = 'a' * 2000000
xs = [s] * 1000000
return {'actions': [], 'pwned': len(''.join(xs))}"""),
    "str_replace_empty": ("RUNTIME_DENIED", """
s = 'a' * 4000
s = s.replace('', 'b' * 4000)
return {'actions': [], 'pwned': len(s)}"""),
    "str_replace_grow": ("RUNTIME_DENIED", """
s = 'a' * 1000
for i in range(10):
    s = s.replace('a', 'a' * 1000)
return {'actions': [], 'pwned': len(s)}"""),
    "str_zfill": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': '5'.zfill(10**9)}"""),
    "string_concat_consts": ("RUNTIME_DENIED", """
return {'actions': [], 'pwned': 'a' 'b' * 4000000 * 4}"""),
    "sub_growth": ("TIMEOUT", """
a = 1
for i in range(500000):
    a = a - -a
return {'actions': [], 'pwned': a.bit_length()}"""),
    "timedelta_mul": ("RUNTIME_DENIED", """
from datetime import timedelta
---
return {'actions': [], 'pwned': str(timedelta(days=1) * (1 << 65000))}"""),
    "try_while_finally": ("RUNTIME_DENIED", """
while True:
    try:
        ctx.foo
    finally:
        continue"""),
    "tuple_iadd_growth": ("RUNTIME_DENIED", """
t = (1,) * 1000
for i in range(60):
    t += t
return {'actions': [], 'pwned': len(t)}"""),
    "tuple_range": ("STEP_LIMIT", """
return {'actions': [], 'pwned': len(tuple(range(9000000)))}"""),
    "unicode_attr_norm": ("COMPILE_DENIED", """
return {'actions': [], 'pwned': str(''.ｆormat)}"""),
    "unicode_ident_norm": ("COMPILE_DENIED", """
def ｆoo(ctx):
    return 1
---
return {'actions': [], 'pwned': 1}"""),
    "unicode_import_norm": ("COMPILE_DENIED", """
import ｏs
---
return {'actions': [], 'pwned': 1}"""),
    "unicode_kwarg_dunder": ("ok", """
def g(**k):
    return k
---
return {'actions': [], 'note': str(g(__class__=1))}"""),
    "unicode_underscore": ("COMPILE_DENIED", """
x = 5
﹏﹏class = 1
return {'actions': [], 'pwned': 1}"""),
    "unpack_range": ("STEP_LIMIT", """
a, *b = range(10000000)
return {'actions': [], 'pwned': len(b)}"""),
    "walrus_dunder": ("COMPILE_DENIED", """
return {'actions': [], 'pwned': [(__builtins__ := 1) for i in [1]]}"""),
    "zip_huge": ("STEP_LIMIT", """
return {'actions': [], 'pwned': len(zip(range(10000000), range(10000000)))}"""),
}
