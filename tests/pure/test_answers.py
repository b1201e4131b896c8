r"""Grading of answers: a table of verdicts, with and without algebra; texts that break graders; threads, processes and Ray actors."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs import answers
from envs.answers import grade, symbolic

ALGEBRA = importlib.util.find_spec("math_verify") is not None
needs_algebra = pytest.mark.skipif(not ALGEBRA, reason="wants math-verify: pip install 'm2flow[math]'")
GENEROUS = 120.0  # seconds after which a thread or a process counts as hung

# (response, gold, right): what the exact rules decide by themselves.
EXACT = [
    # a box, with everything in it
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", 1),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{3}", 0),
    (r"\boxed{\frac{12}{3}}", r"\frac{1}{23}", 0),
    (r"\boxed{\frac{12}{3}}", "4", 1),
    (r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}", 1),
    (r"\boxed{\text{a}\{b\}}", r"\text{a}\{b\}", 1),
    (r"\boxed{\text{a}\{b\}}", r"\text{a}\{c\}", 0),
    (r"nested \boxed{\text{\boxed{3}}}", "3", 1),
    (r"\boxed{\frac{\boxed{1}}{2}}", "1/2", 1),
    (r"\boxed{\frac{\boxed{1}}{2}}", "1", 0),
    (r"\boxed{12", "12", 0),
    (r"\boxed{\frac{1}{2}", "1/2", 0),
    (r"first \boxed{12}, then \boxed{13", "12", 0),
    (r"\boxed{ I lost it, but \boxed{5}", "5", 1),
    (r"\boxed{}", "", 0),
    (r"\boxed{}", "0", 0),
    (r"\boxed{1} then \boxed{2}", "2", 1),
    (r"\boxed{1} then \boxed{2}", "1", 0),
    (r"\boxed{1} then \boxed{2}", r"\{1,2\}", 0),
    (r"\boxed{4} ... final answer is 5", "4", 1),
    (r"\boxed{4} ... final answer is 5", "5", 0),
    (r"\boxed 7", "7", 1),
    (r"\fbox{7}", "7", 1),
    (r"Put it in a \boxed. #### 8", "8", 1),
    (r"Thus $\boxed{42}$. It took 3 steps.", "42", 1),
    (r"\[ \boxed{-17} \]", "-17", 1),
    (r"\boxed{\$5}", "5", 1),
    (r"\boxed{$5$}", "5", 1),
    # ####, as in GSM8K
    ("#### 42", "42", 1),
    ("#### 42.", "42", 1),
    ("#### $42", "42", 1),
    (r"#### \$42", "42", 1),
    ("#### **42**", "42", 1),
    ("#### 42.0", "42", 1),
    ("42.0", "42", 1),
    ("#### 1,234", "1,234", 1),
    ("#### 1,234", "1234", 1),
    ("#### 1234", "1,234", 1),
    ("#### 42\n" + "and so it goes on. " * 40, "42", 1),
    ("#### 42 is the answer, as was shown; " + "and so it goes on. " * 40, "42", 1),
    ("#### 41\nno, wait\n#### 42", "42", 1),
    ("#### 41\nno, wait\n#### 42", "41", 0),
    ("#### 42\n#### Step 3: check", "42", 1),
    ("#### 42 or 43", "42", 0),
    ("#### 42, 43", "42", 0),
    ("#### 42 apples", "42", 1),
    ("####", "42", 0),
    ("6 * 7 = 42 ####", "42", 0),
    ("####\n42", "42", 1),
    ("##### 42\nThe answer is 43", "43", 1),
    ("#### -3", "-3", 1),
    ("#### -3", "3", 0),
    ("#### 42", "6 times 7 is <<6*7=42>>42.\n#### 42", 1),
    ("#### 42", "6 times 7 is 42, less 1.\n#### 41", 0),
    # Answer: x, the answer is x
    ("Answer: 7", "7", 1),
    ("Answer: 17", "7", 0),
    ("**Answer:** 7", "7", 1),
    ("Final Answer: The final answer is $7$. I hope it is correct.", "7", 1),
    ("The answer is 5 because 2 + 3 is 5 and not 6.", "5", 1),
    ("The answer is 5. Then there were 6 more.", "5", 1),
    ("The answer is therefore 5 cm.", "5", 1),
    ("the answer is not 5", "5", 0),
    ("The answer is 4. No: the answer is 5.", "5", 1),
    ("The answer is 4. No: the answer is 5.", "4", 0),
    ("The answer is\n\\[ \\frac{3}{4} \\]", "0.75", 1),
    ("### Answer\n7", "7", 1),
    ("Answer:", "7", 0),
    ("The answer is 42!", "42", 1),
    ("The correct option is B.", "B", 1),
    ("<answer>7</answer>", "7", 1),
    ("Answer: Tuesday", "Tuesday", 1),
    ("The answer to the problem is $\\dfrac{3}{4}$.", "0.75", 1),
    # neither: the whole, or the last number
    ("7", "7", 1),
    ("", "7", 0),
    ("no answer", "7", 0),
    ("", "", 0),
    ("7", "", 0),
    ("So there are 3 dogs and 4 cats, 7 in all.", "7", 1),
    ("So there are 3 dogs and 4 cats, 7 in all.", "4", 0),
    ("It costs $5, and that is $7.50 in all", "7.5", 1),
    (r"So we get $x = \frac{1}{2}$.", "1/2", 1),
    (r"so it is $\sqrt{2}$, since $1+1=2$ is what is under it: $\sqrt{2}$", r"\sqrt{2}", 1),
    ("the total is = - 5", "-5", 1),
    ("- 5 apples\n- 6 pears", "6", 1),
    ("we get 5x", "5", 0),
    ("it is x^2", "2", 0),
    # numbers
    ("042", "42", 1),
    ("+5", "5", 1),
    ("-0", "0", 1),
    ("-0.0", "0", 1),
    (".5", "0.5", 1),
    ("5.", "5", 1),
    ("1 234", "1234", 1),
    (r"1\,234", "1234", 1),
    ("1{,}000", "1000", 1),
    (r"1,\!000", "1000", 1),
    ("1,000,000", "1000000", 1),
    ("1,23", "123", 0),
    ("1 2", "12", 0),
    ("12", "1 2", 0),
    ("1,234.5", "1234.5", 1),
    ("0.333", "1/3", 0),
    ("0.333333", "1/3", 0),
    (r"0.\overline{3}", "1/3", 1),
    (r"0.1\overline{6}", "1/6", 1),
    ("12345678901234567890", "12345678901234567891", 0),
    ("0.1", "0.10000000000000000001", 0),
    ("1e3", "1000", 1),
    ("1.5E-3", "0.0015", 1),
    (r"3 \times 10^{8}", "300000000", 1),
    (r"3 \cdot 10^8", "3e8", 1),
    ("3 x 10^8", "3e8", 1),
    (r"3 \times 10^{8}", "3e9", 0),
    ("2^{10}", "1024", 1),
    ("2**10", "1024", 1),
    ("2^{10}", "1023", 0),
    ("10^{-2}", "0.01", 1),
    (r"\sqrt4", "2", 1),
    (r"\sqrt{9}", "3", 1),
    (r"\sqrt{8}", "3", 0),
    # fractions and mixed numbers
    ("1/2", "0.5", 1),
    ("2/4", "1/2", 1),
    (r"$\frac12$", "0.5", 1),
    (r"\dfrac{3}{4}", "0.75", 1),
    (r"\tfrac34", "3/4", 1),
    (r"\frac1{72}", "1/72", 1),
    (r"-\frac{1}{2}", "-0.5", 1),
    (r"\frac{-1}{2}", "-1/2", 1),
    (r"\frac{1}{-2}", "-1/2", 1),
    (r"\frac{1}{2}", "-1/2", 0),
    (r"\frac{1}{2}", "2", 0),
    (r"\frac{2}{1}", "1/2", 0),
    (r"\frac{\frac{1}{2}}{3}", "1/6", 1),
    ("3 1/2", "3.5", 1),
    (r"3\frac12", "3.5", 1),
    (r"3\frac{1}{2}", "7/2", 1),
    (r"-3\frac{1}{2}", "-3.5", 1),
    ("3 1/2", "31/2", 0),
    ("1/0", "1/0", 1),
    ("1/0", "2/0", 0),
    ("1/0", "0", 0),
    # percent, money, units
    (r"50\%", "50", 1),
    ("50%", "50", 1),
    (r"50\%", "0.5", 1),
    ("50%", "1/2", 1),
    ("50%", "50%", 1),
    ("50%", "5", 0),
    ("0.5%", "50%", 0),
    ("50 percent", "50%", 1),
    (r"\$5", "5", 1),
    ("$5", "5", 1),
    ("$1,234.50", "1234.5", 1),
    ("5 dollars", r"\$5", 1),
    ("€5", "5", 1),
    ("5 €", "$5", 0),
    ("5 cm", "5", 1),
    ("5 apples", "5", 1),
    (r"5\text{ cm}", "5", 1),
    (r"5\ \mathrm{cm}", "5 cm", 1),
    ("5 centimeters", "5 cm", 1),
    ("5 cm", "5 km", 0),
    ("5 hours", "5 minutes", 0),
    ("5 cm^2", r"5\text{ square centimeters}", 1),
    (r"90^\circ", "90", 1),
    (r"90^{\circ}", "90 degrees", 1),
    ("90°", "90", 1),
    ("60 km/h", "60", 1),
    ("5 million", "5000000", 1),
    ("5 million", "5", 0),
    ("2 dozen eggs", "24", 1),
    ("5 or 6", "5", 0),
    ("5x", "5", 0),
    ("5 x", "5", 0),
    ("5i", "5", 0),
    # choices and words
    (r"\boxed{A}", "A", 1),
    (r"\boxed{A}", "B", 0),
    ("(A)", "A", 1),
    ("A.", "A", 1),
    (r"\text{A}", "A", 1),
    (r"\boxed{\text{(C)}}", "C", 1),
    ("The answer is (B).", "B", 1),
    ("The answer is A.", "A", 1),
    ("Answer: C) 12 cm", "C", 1),
    ("(a)", "A", 1),
    ("a", "A", 0),
    ("A, C", "A", 0),
    (r"\boxed{\text{Tuesday}}", "Tuesday", 1),
    (r"\text{Tuesday}", "tuesday", 1),
    ("Wednesday", "Tuesday", 0),
    ("Yes.", "yes", 1),
    ("10:30", "10:30", 1),
    ("10:31", "10:30", 0),
    ("10:30 a.m.", "10:30 AM", 1),
    ("10:30 am", "10:30 pm", 0),
    # pairs, intervals, sets, lists
    ("(1,2)", "(1, 2)", 1),
    ("(1,2)", "(2,1)", 0),
    ("(1,2)", "[1,2]", 0),
    ("(1,2]", "(1,2]", 1),
    ("(1,2]", "(1,2)", 0),
    (r"\left(\frac{1}{2}, 3\right]", "(0.5,3]", 1),
    (r"$x\in(1,2)$", "(1,2)", 1),
    (r"(-\infty, 3)", r"\left(-\infty,3\right)", 1),
    ("(−∞, 3)", r"(-\infty,3)", 1),
    (r"(-\infty, 3)", r"(\infty,3)", 0),
    (r"(-\infty,1)\cup(2,\infty)", r"(-\infty, 1) \cup (2, +\infty)", 1),
    (r"(-\infty,1)\cup(2,\infty)", r"(-\infty, 1] \cup (2, \infty)", 0),
    ("{1,2}", "{2,1}", 1),
    (r"\{1,2\}", r"\{2,1\}", 1),
    (r"\{1,2\}", r"\{1,3\}", 0),
    (r"\{1,2,3\}", r"\{1,2\}", 0),
    (r"\emptyset", r"\varnothing", 1),
    ("1, -2", "-2, 1", 1),
    ("1 and -2", "-2, 1", 1),
    (r"x = 1 \text{ or } x = -2", "1,-2", 1),
    (r"\pm 2", "2, -2", 1),
    (r"\pm 2", "2", 0),
    ("1, 2, 3, 4", "3", 0),
    ("(1,000, 2)", "(1000, 2)", 1),
    # equations and expressions, by the letter
    ("x=5", "5", 1),
    ("x=5", "x = 5", 1),
    ("y=5", "x=5", 0),
    ("x=5", "6", 0),
    (r"2\sqrt{3}", r"2 \sqrt{3}", 1),
    (r"2*\sqrt{3}", r"2\sqrt3", 1),
    ("2√3", r"2\sqrt{3}", 1),
    (r"\frac{\pi}{4}", r"\pi/4", 1),
    ("4π", r"4\pi", 1),
    (r"4 \pi \text{ cm}", r"4\pi", 1),
    ("y = 2x + 1", "y=2x+1", 1),
    ("x^{2}+1", "x^2 + 1", 1),
    ("X", "x", 0),
    ("12 cm", "12 cm^2", 0),
    (r"12\,\text{cm}^2", "12 cm^2", 1),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", 1),
    (r"\boxed{x<5}", "5", 0),
    (r"\boxed{x+y=5}", "5", 0),
    ("3, 2, and 1", "1,2,3", 1),
    ("(1,2,3)", "1,2,3", 0),
    ("= 3.14 m", "3.14", 1),
    # what is left undone is no answer
    ("6*7", "42", 0),
    (r"6 \times 7", "42", 0),
    ("40+2", "42", 0),
    ("6*7 = 42", "42", 1),
    ("2 × 3 × 3", "3*2*3", 1),
    (r"2 \cdot 3^2", "2*3*3", 1),
    ("2*9", "2*3*3", 0),
    ("18", "2*3*3", 0),
    (r"\boxed{6*7+0x}", "42", 0),
    (r"\boxed{6*7*x/x}", "42", 0),
    # other scripts and forms
    ("٤٢", "42", 1),
    ("４２", "42", 1),
    ("−5", "-5", 1),
    ("½", "0.5", 1),
    ("3½", "3.5", 1),
    ("10²", "100", 1),
    ("1\u00a0234", "1234", 1),
    ("答案是 42。", "42", 1),
    ("\u200b42\u200b", "42", 1),
    ("\ud800", "42", 0),
    ("\x00", "42", 0),
    # what is thought before the answer is none of it
    ("<think>The answer is 5? no</think>\n\n6", "6", 1),
    ("<think>so the answer is 12.</think>\n\n**13**", "12", 0),
    ("<think>so the answer is 12.</think>\n\n**13**", "13", 1),
    (r"<think>\boxed{5}</think> It is 6.", "6", 1),
    (r"<think>\boxed{5}</think> It is 6.", "5", 0),
    (r"<think>\boxed{5}</think>", "5", 0),
    (r"a template opens it: 5</think>\boxed{6}", "6", 1),
    (r"<think>5</think> no <think>6</think> The answer is 7", "7", 1),
    (r"<think>I never stop, \boxed{5}", "5", 1),
    (r"<think>\boxed{5}</think></s>", "5", 0),
    # statements
    ("The answer is 12. This answer is correct.", "12", 1),
    ("The answer is 12. We verified that the answer is right.", "12", 1),
    ("The answer is 12.\nLet me know if the answer is unclear!", "12", 1),
    ("Answer: 12\nCheck: the answer 12 is 3*4", "12", 1),
    ("The answer is 12. The answer is 13.", "12", 0),
    ("The answer is 12. No, the answer is unknown.", "12", 0),
    ("The answer is 12. No, the answer is Tuesday.", "12", 0),
    ("The answer is 12. No, the answer is Tuesday.", "Tuesday", 1),
    ("The answer is 12. The answer is (B).", "12", 0),
    ("The answer is 12 (3*4=12)", "12", 1),
    ("The answer is 12 = 3*4", "12", 1),
    ("The answer is 1/2, i.e. 0.5", "1/2", 1),
    ("The answer is 12 (or 13)", "12", 0),
    ("The answer is 12 = 13", "12", 0),
    ("The answer is 12 = 13", "13", 0),
    ("The answer is 1/2, i.e. 0.6", "1/2", 0),
    ("The answer is either 5 or 6", "6", 0),
    ("The answer is either 5 or 6", "5", 0),
    ("Answer: between 5 and 6", "6", 0),
    ("The answer is one of {5,6}", "6", 0),
    ("Answer: between 5 and 6", "5", 0),
    # marked
    ("#### The answer is 12", "12", 1),
    ("#### Total: 12", "12", 1),
    ("#### So 12", "12", 1),
    ("#### She has 12 eggs", "12", 1),
    ("#### 12</s>", "12", 1),
    ("#### 12<|im_end|>", "12", 1),
    ("#### 12<|endoftext|>\n", "12", 1),
    ("#### 12 <eos>", "12", 1),
    ("#### 5 or 6", "5", 0),
    ("#### 5 or 6", "6", 0),
    ("#### 5 then 6", "5", 0),
    ("#### 5 then 6", "6", 0),
    ("#### She has 5 eggs or 6", "6", 0),
    ("#### She has 5 eggs or 6", "5", 0),
    ("#### not 12", "12", 0),
    ("#### 5|6", "5", 0),
    ("#### 5...6", "5", 0),
    ("#### 5 hours 30 minutes", "5", 0),
    ("#### 5 squared", "5", 0),
    ("#### 5 and a half", "5", 0),
    ("#### 3:1", "3", 0),
    # boxes
    (r"\boxed{\text{The answer is }12}", "12", 1),
    (r"\boxed{\text{The answer is }12}", "13", 0),
    (r"\boxed{\color{red}{12}}", "12", 1),
    (r"\boxed{\textcolor{red}{12}}", "12", 1),
    (r"\boxed{12=3\cdot4}", "12", 1),
    (r"\boxed{12=3\cdot5}", "12", 0),
    (r"\boxed{12 \text{ (twelve)}}", "12", 1),
    (r"\boxed{12 \text{ (thirteen)}}", "13", 0),
    (r"\boxed{|-5|}", "5", 1),
    (r"\boxed{5=6}", "6", 0),
    (r"\boxed{5=6}", "5", 0),
    (r"\boxed{5\ldots6}", "5", 0),
    (r"\boxed{5_6}", "5", 0),
    (r"\boxed{5 six}", "5", 0),
    (r"\boxed{5 \mod 7}", "5", 0),
    (r"\boxed{5¢}", "$5", 0),
    (r"\boxed{5¢}", "5 cents", 1),
    # choices
    ("(A) (B) (C) (D)", "A", 0),
    ("(A) or (B)", "A", 0),
    (r"\boxed{(A) (B) (C) (D)}", "A", 0),
    (r"\boxed{(A) or (B)}", "A", 0),
    (r"\boxed{A. B. C. D.}", "A", 0),
    ("#### A) or B)", "A", 0),
    ("Answer: A. No wait, B.", "A", 0),
    ("Answer: A. It has no equal.", "A", 1),
    (r"\boxed{(A)\ 12}", "A", 1),
    (r"\boxed{\textbf{(B)} Bob}", "B", 1),
    ("(D) Both (A) and (B)", "D", 1),
    ("Answer: C) Vitamin A", "C", 1),
    ("Answer: D) E and F", "D", 1),
    ("Answer: A. Or B.", "A", 0),
    ("The answer is 12 (twelve) eggs.", "12", 1),
    ("The answer is 42: 6 times 7.", "42", 1),
    ("The answer is (A) since (B) is wrong", "A", 1),
    ("The answer is A. Actually B.", "A", 0),
    ("Answer: 5. No, 6.", "5", 0),
    ("The answer is 5 (or six)", "5", 0),
    ("The answer is 5 hours 30 minutes.", "5", 0),
    ("Answer: 5 million, because it says so", "5", 0),
    ("Answer: 5 million, because it says so", "5000000", 1),
    ("The answer is 5 apples for 3 people.", "5", 1),
    ("The answer is 5, not 6.", "5", 1),
    ("So the answer is that 3 + 4 = 7 eggs are left.", "7", 1),
    ("So 12. This answer is correct.", "12", 1),
    ("The answer is from 1 to 10", "10", 0),
    ("The answer is either $x$ or $y$", "y", 0),
    ("#### 42 (6*7=42)", "42", 1),
    ("#### So 3*4=12 eggs", "12", 1),
    (r"\boxed{5=x}", "5", 1),
    (r"\boxed{6*7=3/0 cm}", "3", 0),
    (r"\boxed{\frac{10}{3}=3.33}", "3.33", 1),
    (r"\boxed{21 (twenty-one)}", "21", 1),
    (r"\boxed{12 (cm)}", "12 km", 0),
    (r"\boxed{5?6}", "5", 0),
    # longer than a line that is looked at
    ("#### " + "7" * 5000, "7" * 5000, 1),
    ("6 times 7.\n#### " + "7" * 5000, "#### " + "7" * 5000, 1),
    ("#### " + "7" * 4999 + "8", "7" * 5000, 0),
    # beyond reason
    (r"\boxed{9^{9^{9^{9}}}}", "9", 0),
    (r"\boxed{100000000!}", "1", 0),
    (r"\boxed{" * 1000, "1", 0),
    (r"\boxed{" * 1000 + "1" + "}" * 1000, "2", 0),
    ("{" * 100000, "1", 0),
    ("1" * 100000, "1", 0),
    ("1" * 5000, "1" * 5000, 1),
    ("#### " * 20000 + "7", "7", 1),
    ("answer is " * 20000 + "7", "7", 1),
    ("$1$ " * 20000 + "7", "7", 1),
    (r"\boxed{" + r"\frac{1}" * 60 + "}", "1", 0),
    (r"\boxed{" + r"\frac{1}{" * 60 + "1" + "}" * 60 + "}", "2", 0),
    ("1," * 50000 + "1", "1", 1),
    ("The answer is " + "1+" * 20000 + "1", "7", 0),
    ("#### " + ".*" * 50000, "7", 0),
    ("#### " + "5 (" * 30000, "7", 0),
    ("#### step " * 20000 + "#### 7", "7", 1),
    ("<think>" * 20000 + "</think>" * 20000 + "7", "7", 1),
    (r"\boxed{" + "1+" * 250 + "1=251}", "251", 1),
    (r"\boxed{251=" + "1+" * 240 + "1}", "7", 0),
]
# What only algebra can tell.
ALGEBRAIC = [
    (r"\boxed{1/\sqrt{2}}", r"\frac{\sqrt{2}}{2}", 1),
    (r"\boxed{1/\sqrt2}", r"\sqrt2/2", 1),
    ("(x+1)^2", "x^2+2x+1", 1),
    ("(x+1)^2", "x^2+2x+2", 0),
    (r"1+\sqrt{2}", r"\sqrt{2}+1", 1),
    (r"1-\sqrt{2}", r"\sqrt{2}+1", 0),
    ("5!", "120", 1),
    ("5!", "121", 0),
    (r"\frac{x}{2}", "0.5x", 1),
    (r"\sqrt{12}", r"2\sqrt{3}", 1),
    (r"\sqrt{12}", r"3\sqrt{2}", 0),
    (r"\{\sqrt{12}, 1\}", r"\{1, 2\sqrt{3}\}", 1),
    (r"(\sqrt{12}, 1)", r"(2\sqrt{3}, 1)", 1),
    (r"(\sqrt{12}, 1)", r"(1, 2\sqrt{3})", 0),
    ("3.14159", r"\pi", 0),
    (r"\sin(\pi/6)", "1/2", 1),
    (r"\boxed{\sqrt[3]{8}}", "2", 1),
    ("act", "cat", 0),
    ("3.333333", "10/3", 0),
    ("y-2x=1", "y=2x+1", 1),
    ("x=2y+1", "y=2x+1", 0),
    (r"\begin{pmatrix}\sqrt{4}\\x\end{pmatrix}", r"\begin{pmatrix}2\\x\end{pmatrix}", 1),
    (r"\begin{pmatrix}1&2\\3&x\end{pmatrix}", r"\begin{pmatrix}1&2\\3&y\end{pmatrix}", 0),
    ("(x-1)(x+1)", "x^2-1", 1),
    ("2i+1", "1+2i", 1),
    ("1-2i", "1+2i", 0),
    (r"\infty-\infty", "0", 0),
    (r"\sqrt{0.75}", r"\frac{\sqrt{3}}{2}", 1),
    (r"\boxed{3x+2y=6}", "6=2y+3x", 1),
    (r"\boxed{6=2\sqrt{9}}", "6", 1),
]
# Each would run for minutes or for ever.
NASTY = [
    "9^{9^{9}}",
    "9**9**9",
    "9^{9^{9^{9}}}",
    "(9^9)^{9^9}",
    "100000000!",
    "((10!)!)!",
    r"\lfloor 9^{9^9} / 7 \rfloor",
    r"\binom{10^9}{10^8}",
    r"\sum_{n=1}^{10^9} n^9",
    r"\gcd(9^{9^9}, 6^{6^6})",
    r"\int_0^{1} x^{x^{x^{x}}} dx",
    "(x+y+z+w+1)^{999}",
    r"\frac{1}{" * 100 + "2" + "}" * 100,
    "(" * 150 + "x" + ")" * 150,
    "((((((x^2+1)^7+y)^7+z)^7+w)^7+v)^7+u)^7",
    "123456789^{9876}",
    "x" * 300,
    r"\sqrt{" * 100 + "x" + "}" * 100,
]


def shortened(value: object) -> str:
    return repr(value)[:60]


def test_the_table_is_large_and_has_no_case_twice():
    assert len(EXACT) + len(ALGEBRAIC) >= 150
    assert len({case[:2] for case in EXACT}) == len(EXACT)


@pytest.mark.parametrize(("response", "gold", "right"), EXACT, ids=shortened)
def test_the_exact_rules_decide_alone(response, gold, right, monkeypatch):
    monkeypatch.setattr(symbolic, "equal", lambda found, sought: False)
    assert grade(response, gold) == float(right)


@needs_algebra
def test_algebra_overrules_no_exact_verdict():
    assert [case for case in EXACT if grade(*case[:2]) != case[2]] == []


@needs_algebra
@pytest.mark.parametrize(("response", "gold", "right"), ALGEBRAIC, ids=shortened)
def test_algebra_tells_what_the_rules_cannot(response, gold, right):
    assert grade(response, gold) == float(right)


@pytest.mark.parametrize("nasty", NASTY, ids=shortened)
def test_what_would_run_for_ever_is_wrong_and_the_next_answer_is_graded(nasty):
    assert in_thread(lambda: grade(rf"\boxed{{{nasty}}}", "7")) == 0.0
    assert in_thread(lambda: grade(rf"\boxed{{{nasty}}}", r"7+\sqrt{x}")) == 0.0
    assert grade("#### 7", "7") == 1.0


@needs_algebra
def test_a_question_that_takes_too_long_ends_and_the_next_is_answered():
    prover = symbolic._prover
    assert prover.ask("x+1", "1+x") is True
    before = prover.pid
    assert in_thread(lambda: prover.ask("9^{9^{9^{9}}}", "1")) is False  # past the screen
    assert in_thread(lambda: prover.ask("((((((x^2+1)^7+y)^7+z)^7+w)^7+v)^7+u)^7", "x")) is False
    assert prover.ask("x+1", "1+x") is True
    assert prover.pid == before  # only its child was ended


@needs_algebra
@pytest.mark.parametrize(("sent", "answered"), [(signal.SIGKILL, True), (signal.SIGSTOP, False)], ids=["killed", "stopped"])
def test_a_process_that_is_gone_is_begun_anew(sent, answered):
    prover = symbolic._prover
    assert prover.ask("x+1", "1+x") is True
    before = prover.pid
    os.kill(before, sent)
    assert in_thread(lambda: prover.ask("x+2", "2+x")) is answered
    assert prover.ask("x+2", "2+x") is True
    assert prover.pid != before and not alive(before)


@needs_algebra
def test_a_forked_process_begins_its_own():
    assert symbolic._prover.ask("x+1", "1+x") is True
    ours = symbolic._prover.pid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads
        child = os.fork()
    if child == 0:
        right = symbolic._prover.pid is None and symbolic._prover.ask("x+3", "3+x") and symbolic._prover.pid != ours
        symbolic._prover.close()
        os._exit(0 if right else 1)
    deadline = time.monotonic() + GENEROUS
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
    assert ended == (child, 0)
    assert symbolic._prover.ask("x+1", "1+x") is True and symbolic._prover.pid == ours


@needs_algebra
@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_no_process_outlives_the_one_that_began_it(how):
    program = "import os, signal, sys, time; from envs.answers import grade, symbolic; print(grade('(x+1)^2', 'x^2+2x+1'), symbolic._prover.pid, flush=True)"
    program += "; os.kill(os.getpid(), signal.SIGKILL)" if how == "is killed" else ""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GENEROUS)
    verdict, pid = done.stdout.split()
    assert verdict == "1.0", done.stderr
    deadline = time.monotonic() + GENEROUS
    while alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(pid))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_threads_grade_at_once():
    wrong = []

    def work(number: int) -> None:
        for i in range(40):
            if grade(rf"\boxed{{\frac{{{i}}}{{{number}}}}}", f"{i}/{number}") != 1.0:
                wrong.append((number, i))
        if ALGEBRA and grade(f"(x+{number})^2", f"x^2+{2 * number}x+{number * number}") != 1.0:
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
    assert not any(thread.is_alive() for thread in threads) and wrong == []


def test_another_process_grades():
    program = "from envs.answers import grade; print(grade('#### 42', '42'), grade('#### 41', '42'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GENEROUS)
    assert done.stdout.split() == ["1.0", "0.0"], done.stderr


def test_grading_a_number_imports_nothing_heavy():
    program = "import sys; from envs.answers import grade; grade('#### 42', '42'); print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GENEROUS)
    assert not {"sympy", "math_verify", "numpy", "torch", "gymnasium"} & set(done.stdout.split()), done.stderr


def test_without_the_package_the_rules_decide_and_it_is_said_once(monkeypatch):
    monkeypatch.setattr(symbolic.importlib.util, "find_spec", lambda name: None)
    prover = symbolic.Prover()
    with pytest.warns(RuntimeWarning, match="math-verify is not installed"):
        assert prover.ask("x+1", "1+x") is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert prover.ask("x+1", "1+x") is False


def test_what_is_no_text_is_wrong():
    assert grade(None, "42") == 0.0
    assert grade("42", None) == 0.0


MARKUP = st.sampled_from(["\\boxed{", "\\frac", "{", "}", "\\", "$", "####", "answer is ", "1", "23", ",", ".", "/", "^", "(", "]", "\\{", "\\}", "\\text{", "=", " ", "\n", "-", "%", "x", "or", "\\pm", "\\sqrt", "\\cup", "e5", "½", "²", "٤"])


@settings(max_examples=250, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(MARKUP, max_size=24).map("".join)), st.one_of(st.text(max_size=20), st.lists(MARKUP, max_size=8).map("".join)))
def test_no_text_raises(response, gold):
    before, answers.symbolic.equal = answers.symbolic.equal, lambda found, sought: False
    try:
        assert grade(response, gold) in (0.0, 1.0)
        assert grade(rf"\boxed{{{response}}}", gold) in (0.0, 1.0)
    finally:
        answers.symbolic.equal = before


@settings(max_examples=100, deadline=None)
@given(st.fractions(max_denominator=10**6), st.fractions(max_denominator=10**6))
def test_a_fraction_is_itself_and_no_other(one, other):
    response = rf"\boxed{{{'-' if one < 0 else ''}\frac{{{abs(one.numerator)}}}{{{one.denominator}}}}}"
    assert grade(response, str(one)) == 1.0
    assert grade(response, str(other)) == float(one == other)


@pytest.mark.slow
@needs_algebra
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_ray_actor_grades(ray_nodes, concurrency):
    import ray

    @ray.remote(num_cpus=0, max_concurrency=concurrency)
    class Grader:
        def grade(self, response: str, gold: str) -> float:
            return grade(response, gold)

    grader = Grader.remote()
    cases = [*EXACT[:12], *ALGEBRAIC]
    verdicts = ray.get([grader.grade.remote(*case[:2]) for case in cases], timeout=2 * GENEROUS)  # actors run at a low priority
    assert verdicts == [float(case[2]) for case in cases]
    ray.kill(grader)


def in_thread(work):
    """What `work` returns, in a thread that must end."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(GENEROUS)
    assert not thread.is_alive(), "hung"
    return results[0]
